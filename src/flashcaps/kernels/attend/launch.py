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
from . import plan as plan


def sizes(u: Tensor, weight: Tensor, window: Sequence[int] = ()) -> plan.Sizes:
    """u (B, G, 1, C, d), or with a window (C, kernel, stride) an image (B, T, H, W, D)."""
    j, d, g, h = weight.shape
    if not window:
        return plan.Sizes(u.shape[0], g, j, u.shape[3], d, h)
    rows, kernel, stride = window
    places = ((u.shape[2] - kernel) // stride + 1) * ((u.shape[3] - kernel) // stride + 1)
    return plan.Sizes(u.shape[0] * places, g, j, rows, d, h, u.numel())


EXACT = "tf32x3"  # products of fp32 as exact as those of the fp32 units (2e-7), and faster


def precision(dtype: torch.dtype) -> str:
    """How the matrix units read fp32: as PyTorch's own products do."""
    return EXACT if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def mend(u: Tensor) -> float:
    """What makes up for the matrix units' way to read fp32 as TF32: its last 13 bits are dropped, toward zero.

    A number loses 2^-10 / 2 / m of itself in the mean over mantissas m, 2^-10 / (4 log 2), and a product of two twice
    as much. It would be most of the error, since a sum loses as much as its terms do.
    """
    dropped = u.is_cuda and u.dtype == torch.float32 and precision(u.dtype) == "tf32"
    return 1.0 + dropped * 2.0**-10 / (2 * math.log(2))


def empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def of_step(lse: Tensor, t: int, iterations: int) -> Tensor:
    """lse of iteration t, of the last iterations' (.., B, G); any tensor where it has none, having equal couplings."""
    return lse[max(t + lse.shape[0] - iterations, 0)] if lse.shape[0] else lse


def added_up(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis, in order."""
    from . import squash as kernels

    if parts.shape[0] == 1:
        return parts[0].to(dtype)
    out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    ct = min(plan.power_of_two(parts.shape[0]), 64)
    e = 4096 // ct
    kernels.add_up[(plan.ceil_div(out.numel(), e),)](parts, out, parts.shape[0], out.numel(), E=e, CT=ct, num_warps=4)
    return out


class Step:
    """One step's inputs; couplings depend on the query, on the logits, or on nothing."""

    def __init__(
        self,
        u: Tensor,
        weight: Tensor,
        query: Tensor | None,
        logits: Tensor | None,
        leaky: bool = False,
        detach: bool = False,
        window: Sequence[int] = (),
    ) -> None:
        self.n, self.weight = sizes(u, weight, window), weight.contiguous()
        self.window: Window | None = None
        if window:
            self.u, self.window = windowed(u, *window[1:])
            self.strides = torch.empty_like(u, device="meta").stride()  # of its gradient, too
        else:
            self.u = u.contiguous()
            self.strides = self.u.stride()
        self.query = u if query is None else query.contiguous()  # any tensor stands for one that is not read
        self.logits = u if logits is None else logits.contiguous()
        self.given = {"QUERY": query is not None, "LOGITS": logits is not None}
        self.coupled = query is not None or logits is not None
        self.leaky, self.detach, self.share = leaky, detach, mend(u) / (self.n.j + leaky)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.u, self.weight, self.query, self.logits

    def tile(self, kernel: str) -> plan.Tile:
        return plan.tile(self.n, kernel, precision(self.u.dtype) == EXACT, 8 * self.u.element_size())

    def constants(self, tile: plan.Tile) -> dict[str, Any]:
        n = self.n
        return {
            "G": n.g, "J": n.j, "C": n.c, "D": n.d, "H": n.h,
            "BT": tile.bt, "IC": tile.ic, "CP": tile.cp, "DP": tile.dp, "HP": tile.hp,
            **self.given, "PRECISION": precision(self.u.dtype), "MEND": mend(self.u), "num_warps": tile.warps,
            **({} if tile.registers is None else {"maxnreg": tile.registers}), **self.at,
        }  # fmt: skip

    @property
    def at(self) -> dict[str, int]:
        """Where u lies."""
        if self.window is not None:
            return self.window.constants
        pose = self.n.c * self.n.d
        return {"OH": 1, "OW": 1, "SB": self.n.g * pose, "PY": 0, "PX": 0, "K": 1, "ST": pose, "SY": 0, "SX": 0}

    def grid(self, tile: plan.Tile, rows: int) -> tuple[int, int]:
        return plan.ceil_div(rows, tile.bt), plan.ceil_div(self.n.g, tile.ic)

    def forward(self, lse: Tensor, s: Tensor | None = None) -> Tensor:
        """Partial s (chunks, B, J, D), in `s` (1, B, J, D) if there is one chunk; lse (B, G) is written if couplings
        depend on anything.
        """
        from . import kernels as kernels

        n = self.n
        if not self.coupled:
            return self._plain_sum(s)
        t = self.tile("log_sum_exp")
        kernels.log_sum_exp[self.grid(t, n.b)](*self.tensors, lse, n.b, LEAKY=self.leaky, **self.constants(t))
        t = self.tile("weighted_sum")
        cut = plan.cut(n, t, "weighted_sum")
        chunks, batches, groups = cut.grid
        parts = self._sums(chunks, s)
        kernels.weighted_sum[batches, chunks, groups](
            *self.tensors, lse, parts, n.b, cut.tiles, cut.parents, **self.constants(t)
        )
        return parts

    def _sums(self, chunks: int, s: Tensor | None) -> Tensor:
        n = self.n
        return s if s is not None and chunks == 1 else empty(self.u, chunks, n.b, n.j, n.c * n.h)

    def gradients(self, dtype: torch.dtype, alone: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Room for gu in `dtype` and for partial gW and gl, of this step alone or of others, too."""
        n, t = self.n, self.tile("parent_gradient")
        batches = plan.cut(n, t, "parent_gradient").grid[1]
        if alone and not self.coupled:
            batches = self._plain_chunks()
        gl = (batches, n.g, n.j) if self.given["LOGITS"] else (1, 0)
        gu = torch.empty_strided(self.u.shape, self.strides, dtype=dtype, device=self.u.device)
        return gu, empty(self.u, batches, *self.weight.shape), empty(self.u, *gl)

    def backward(self, gs: Tensor, lse: Tensor, into: tuple[Tensor, Tensor, Tensor], again: bool) -> Tensor:
        """Partial gq (chunks, B, J, D); gu, gW and gl go into `into`, on top of what is there if `again`."""
        from . import kernels as kernels

        n, (gu, gw, gl) = self.n, into
        if not self.coupled:
            self._plain_gradients(gs, gu, gw, again)
            return empty(gs, 1, 0)
        delta, t = empty(gs, n.b, n.g), self.tile("pose_gradient")

        def pose_gradient(examples: slice, rows: slice, out: Tensor, again: bool) -> None:
            query = self.query[rows] if self.given["QUERY"] else self.query
            kernels.pose_gradient[self.grid(t, rows.stop - rows.start)](
                gs[rows], self.u[examples], self.weight, query, self.logits, lse[rows], out, delta[rows],
                rows.stop - rows.start, int(again), DETACH=self.detach, **self.constants(t),
            )  # fmt: skip

        self._by_examples(pose_gradient, gu, again)
        t = self.tile("parent_gradient")
        cut = plan.cut(n, t, "parent_gradient")
        gq = empty(gs, *((cut.grid[0], n.b, n.j, n.c * n.h) if self.given["QUERY"] else (1, 0)))
        kernels.parent_gradient[cut.grid](
            gs, *self.tensors, lse, delta, gw, gq, gl, n.b, cut.tiles, cut.batches, cut.parents, int(again),
            DETACH=self.detach, **self.constants(t),
        )  # fmt: skip
        return gq

    def _by_examples(self, launch: Callable[[slice, slice, Tensor, bool], None], gu: Tensor, again: bool) -> None:
        """Poses' gradients, those of an image a few examples at a time: patches are larger than it."""
        n, window, every = self.n, self.window, slice(0, self.u.shape[0])
        if window is None:
            return launch(every, every, gu, again)
        count = plan.examples(n, every.stop)
        patches = empty(gu, count * window.places, n.g, n.c * n.d)
        for examples, rows in window.spans(every.stop, count):
            launch(examples, rows, patches, False)
            fold(patches, gu[examples], window, again)

    def _plain(self, kernel: str) -> tuple[dict[str, Any], tuple[int, int, int]]:
        """Constants of a kernel of equal couplings, and tiles of its rows, columns (i, k) and (j, h)."""
        n, (rows, columns, parents, warps, stages, _) = self.n, plan.plain(kernel, self.n)
        shape = {"G": n.g, "J": n.j, "C": n.c, "D": n.d, "H": n.h, "PRECISION": precision(self.u.dtype)}
        tile = {"R": rows, "N": columns, "M": parents, "STAGES": stages, "num_warps": warps}
        tiles = plan.ceil_div(n.b * n.c, rows), plan.ceil_div(n.g * n.d, columns), plan.ceil_div(n.j * n.h, parents)
        return {**shape, **tile}, tiles

    def _plain_sum(self, s: Tensor | None) -> Tensor:
        from . import plain as kernels

        n, copied, (constants, (r, c, p)) = self.n, plan.many(self.n), self._plain("plain_sum")
        resident = plan.plain("plain_sum", n).resident
        tiles, chunks = plan.chunks(c, r * p, n.room // n.parents, resident)
        parts = self._sums(chunks, s)
        weight = self.weight.permute(0, 3, 2, 1).contiguous() if copied else self.weight
        kernels.plain_sum[p, r, chunks](
            self.u, weight, parts, n.b * n.c, tiles, self.share, COPIED=copied, **constants, **self.at
        )
        return parts

    def _plain_chunks(self) -> int:
        """Into which the rows are cut for gW."""
        _, (r, c, p) = self._plain("plain_weight_gradient")
        resident = plan.plain("plain_weight_gradient", self.n).resident
        return plan.chunks(r, c * p, self.n.room // self.n.weight, resident)[1]

    def _plain_gradients(self, gs: Tensor, gu: Tensor, gw: Tensor, again: bool) -> None:
        from . import plain as kernels

        n, copied, (constants, (_, c, _)) = self.n, plan.many(self.n), self._plain("plain_pose_gradient")
        weight = self.weight.permute(2, 1, 0, 3).contiguous() if copied else self.weight

        def pose_gradient(_: slice, rows: slice, out: Tensor, again: bool) -> None:
            count = (rows.stop - rows.start) * n.c
            grid = c, plan.ceil_div(count, constants["R"])
            kernels.plain_pose_gradient[grid](
                gs[rows], weight, out, count, self.share, int(again), COPIED=copied, **constants
            )

        self._by_examples(pose_gradient, gu, again)
        self._plain_weight_gradient(gs, gw, again)

    def _plain_weight_gradient(self, gs: Tensor, gw: Tensor, again: bool) -> None:
        from . import plain as kernels

        n, (constants, (r, c, p)) = self.n, self._plain("plain_weight_gradient")
        halves = plan.many(n) and self.u.dtype == torch.float32 and constants["PRECISION"] == "tf32"
        share = self.share / mend(self.u) if halves else self.share
        twice = constants["M"] > 64
        constants["M"] //= 1 + twice
        kernels.plain_weight_gradient[p, c, gw.shape[0]](
            gs, self.u, gw, n.b * n.c, plan.ceil_div(r, gw.shape[0]), share, int(again), TWICE=int(twice),
            HALVES=halves, **constants, **self.at,
        )  # fmt: skip
