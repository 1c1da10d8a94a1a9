"""Launches of `attend`'s kernels: what a step costs in memory is decided here.

Triton is imported when a kernel is first launched, not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.patches import Window, fold, windowed
from ..common.replay import launch
from ..common.rows import ceil_div, empty_fp32, power_of_two
from . import plan

EXACT = "tf32x3"  # products of fp32 as exact as those of the fp32 units (2e-7), and faster


def precision(dtype: torch.dtype) -> str:
    """How the matrix units read fp32: as PyTorch's own products do."""
    return EXACT if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def tf32_gain(u: Tensor) -> float:
    """A factor for products of two fp32 numbers read as TF32, whose last 13 bits the matrix units drop, toward zero.

    A number loses 2^-10 / 2 / m of itself in the mean over mantissas m, 2^-10 / (4 log 2), and a product of two twice
    as much. It would be most of the error, since a sum loses as much as its terms do.
    """
    dropped = u.is_cuda and u.dtype == torch.float32 and precision(u.dtype) == "tf32"
    return 1.0 + dropped * 2.0**-10 / (2 * math.log(2))


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis, in order."""
    from . import epilogue

    if parts.shape[0] == 1:
        return parts[0].to(dtype)
    out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    ct = min(power_of_two(parts.shape[0]), 64)
    e = 4096 // ct
    tiles = ceil_div(out.numel(), e)
    launch(epilogue.sum_parts, (tiles,))(parts, out, parts.shape[0], out.numel(), E=e, CT=ct, num_warps=4)
    return out


class Launch:
    """One step's inputs; couplings depend on the query, on the logits, or on nothing.

    u (B, G, 1, C, d), or with a window (C, kernel, stride) an image (B, T, H, W, D). pose: elements of the pose that
    routing continues from.
    """

    def __init__(
        self,
        u: Tensor,
        weight: Tensor,
        query: Tensor | None,
        logits: Tensor | None = None,
        leaky: bool = False,
        detach: bool = False,
        window: Sequence[int] = (),
        pose: int = 0,
    ) -> None:
        self.n = n = plan.sizes(u, weight, window)._replace(pose=pose)
        self.window: Window | None = None
        if window:
            self.u, self.window = windowed(u, *window[1:])
            self.at = self.window.constants
        else:
            self.u, pose = u.contiguous(), n.c * n.d
            self.at = {"OH": 1, "OW": 1, "SB": n.g * pose, "PY": 0, "PX": 0, "K": 1, "ST": pose, "SY": 0, "SX": 0}
        self.strides = (torch.empty_like(u, device="meta") if window else self.u).stride()  # of its gradient, too
        self.weight = weight.contiguous()
        self.query = u if query is None else query.contiguous()  # u stands for what is not read
        self.logits = u if logits is None else logits.contiguous()
        self.tensors = self.u, self.weight, self.query, self.logits
        self.given = {"QUERY": query is not None, "LOGITS": logits is not None}
        self.shape = {"G": n.g, "J": n.j, "C": n.c, "D": n.d, "H": n.h}
        self.coupled = query is not None or logits is not None
        self.leaky, self.detach = leaky, detach
        self.precision, self.gain = precision(u.dtype), tf32_gain(u)
        self.share = self.gain / (n.j + leaky)

    def tile(self, kernel: str) -> tuple[plan.Tile, dict[str, Any]]:
        """A kernel's tile, and all its constants."""
        t = plan.tile(self.n, kernel, self.precision == EXACT)
        bound = {} if t.registers is None else {"maxnreg": t.registers}
        tile = {"BT": t.bt, "IC": t.ic, "CP": t.cp, "DP": t.dp, "HP": t.hp, "num_warps": t.warps, **bound}
        return t, {**self.shape, **tile, **self.given, "PRECISION": self.precision, "GAIN": self.gain, **self.at}

    def grid(self, t: plan.Tile, rows: int) -> tuple[int, int]:
        return ceil_div(rows, t.bt), ceil_div(self.n.g, t.ic)

    def forward(self, lse: Tensor, s: Tensor | None = None) -> Tensor:
        """Partial s (chunks, B, J, D), in `s` (1, B, J, D) if there is one chunk; lse (B, G) is written if couplings
        depend on anything.
        """
        from . import kernels

        if not self.coupled:
            return self._uniform_sum(s)
        t, constants = self.tile("log_sum_exp")
        launch(kernels.log_sum_exp, self.grid(t, self.n.b))(*self.tensors, lse, self.n.b, LEAKY=self.leaky, **constants)
        t, constants = self.tile("weighted_sum")
        cut = plan.cut(self.n, t, "weighted_sum")
        chunks, batches, groups = cut.grid
        parts = self._parts(chunks, s)
        launch(kernels.weighted_sum, (batches, chunks, groups))(
            *self.tensors, lse, parts, self.n.b, cut.tiles, cut.parents, **constants
        )
        return parts

    def _parts(self, chunks: int, s: Tensor | None) -> Tensor:
        n = self.n
        return s if s is not None and chunks == 1 else empty_fp32(self.u, chunks, n.b, n.j, n.c * n.h)

    def gradients(self, dtype: torch.dtype, alone: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Memory for gu in `dtype` and for partial gW and gl, of this step alone or of several."""
        n = self.n
        batches = plan.cut(n, self.tile("parent_gradient")[0], "parent_gradient").grid[1]
        if alone and not self.coupled:
            rows, columns, parents = self._uniform("uniform_weight_gradient")[1]
            batches = self._chunks("uniform_weight_gradient", rows, columns * parents, n.weight)[1]
        gl = (batches, n.g, n.j) if self.given["LOGITS"] else (1, 0)
        gu = torch.empty_strided(self.u.shape, self.strides, dtype=dtype, device=self.u.device)
        return gu, empty_fp32(self.u, batches, *self.weight.shape), empty_fp32(self.u, *gl)

    def backward(self, gs: Tensor, lse: Tensor, into: tuple[Tensor, Tensor, Tensor], again: bool) -> Tensor:
        """Partial gq (chunks, B, J, D). gu, gW and gl are written to `into`, or added to what it holds if `again`."""
        from . import kernels

        n, (gu, gw, gl) = self.n, into
        if not self.coupled:
            self._uniform_gradients(gs, gu, gw, again)
            return empty_fp32(gs, 1, 0)
        delta, (t, constants) = empty_fp32(gs, n.b, n.g), self.tile("pose_gradient")

        def pose_gradient(examples: slice, rows: slice, out: Tensor, again: bool) -> None:
            query = self.query[rows] if self.given["QUERY"] else self.query
            launch(kernels.pose_gradient, self.grid(t, rows.stop - rows.start))(
                gs[rows], self.u[examples], self.weight, query, self.logits, lse[rows], out, delta[rows],
                rows.stop - rows.start, int(again), DETACH=self.detach, **constants,
            )  # fmt: skip

        self._by_examples(pose_gradient, gu, again)
        of_parents, constants_of_parents = self.tile("parent_gradient")
        cut = plan.cut(n, of_parents, "parent_gradient")
        gq = empty_fp32(gs, *((cut.grid[0], n.b, n.j, n.c * n.h) if self.given["QUERY"] else (1, 0)))
        launch(kernels.parent_gradient, cut.grid)(
            gs, *self.tensors, lse, delta, gw, gq, gl, n.b, cut.tiles, cut.batches, cut.parents, int(again),
            DETACH=self.detach, **constants_of_parents,
        )  # fmt: skip
        return gq

    def _by_examples(self, launch: Callable[[slice, slice, Tensor, bool], None], gu: Tensor, again: bool) -> None:
        """Poses' gradients, those of an image a few examples at a time: patches are larger than it."""
        n, window, every = self.n, self.window, slice(0, self.u.shape[0])
        if window is None:
            return launch(every, every, gu, again)
        count = plan.examples(n, every.stop)
        patches = empty_fp32(gu, count * window.places, n.g, n.c * n.d)
        for examples, rows in window.spans(every.stop, count):
            launch(examples, rows, patches, False)
            fold(patches, gu[examples], window, again)

    def _uniform(self, kernel: str) -> tuple[dict[str, Any], tuple[int, int, int]]:
        """Constants of a kernel of equal couplings, and tiles of its rows, columns (i, k) and (j, h)."""
        n, t = self.n, plan.uniform(kernel, self.n)
        tile = {"R": t.rows, "N": t.columns, "M": t.parents, "STAGES": t.stages, "num_warps": t.warps}
        tiles = ceil_div(n.b * n.c, t.rows), ceil_div(n.g * n.d, t.columns), ceil_div(n.j * n.h, t.parents)
        return {**self.shape, "PRECISION": self.precision, **tile}, tiles

    def _chunks(self, kernel: str, tiles: int, programs: int, copy: int) -> tuple[int, int]:
        """Tiles of a program and chunks, each of which leaves a copy of so many elements."""
        return plan.chunks(tiles, programs, self.n.room // copy, plan.uniform(kernel, self.n).resident)

    def _uniform_sum(self, s: Tensor | None) -> Tensor:
        from . import uniform

        n, (constants, (rows, columns, parents)) = self.n, self._uniform("uniform_sum")
        tiles, chunks = self._chunks("uniform_sum", columns, rows * parents, n.parents)
        parts = self._parts(chunks, s)
        weight = self.weight.permute(0, 3, 2, 1).contiguous() if n.many else self.weight
        launch(uniform.uniform_sum, (parents, rows, chunks))(
            self.u, weight, parts, n.b * n.c, tiles, self.share, COPIED=n.many, **constants, **self.at
        )
        return parts

    def _uniform_gradients(self, gs: Tensor, gu: Tensor, gw: Tensor, again: bool) -> None:
        from . import uniform

        n, (constants, (_, columns, _)) = self.n, self._uniform("uniform_pose_gradient")
        weight = self.weight.permute(2, 1, 0, 3).contiguous() if n.many else self.weight

        def pose_gradient(_: slice, rows: slice, out: Tensor, again: bool) -> None:
            count = (rows.stop - rows.start) * n.c
            launch(uniform.uniform_pose_gradient, (columns, ceil_div(count, constants["R"])))(
                gs[rows], weight, out, count, self.share, int(again), COPIED=n.many, **constants
            )

        self._by_examples(pose_gradient, gu, again)
        of_weight, (rows, poses, parents) = self._uniform("uniform_weight_gradient")
        halves = n.many and self.u.dtype == torch.float32 and self.precision == "tf32"
        share = self.share / self.gain if halves else self.share
        twice = of_weight["M"] > 64
        of_weight["M"] //= 1 + twice
        launch(uniform.uniform_weight_gradient, (parents, poses, gw.shape[0]))(
            gs, self.u, gw, n.b * n.c, ceil_div(rows, gw.shape[0]), share, int(again), TWICE=int(twice),
            HALVES=halves, **of_weight, **self.at,
        )  # fmt: skip
