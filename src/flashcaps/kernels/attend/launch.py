"""Launches of `attend`'s kernels: what a step costs in memory is decided here.

Triton is imported when a kernel is first launched, not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.patches import Window, fold, windowed
from ..common.replay import launch
from ..common.rows import ceil_div, empty_fp32
from . import plan

EPS = 1e-5  # LayerNorm's
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


class Finish(NamedTuple):
    """What `epilogue.finish` makes of a sum: its KIND, and tensors where it has them."""

    kind: str
    out: Tensor
    s: Tensor | None = None  # (B, J, D)
    total: Tensor | None = None
    bias: Tensor | None = None  # (J, D), or LayerNorm's scale (D,)
    beta: Tensor | None = None
    before: Tensor | None = None
    query: Tensor | None = None
    more: bool = False
    scale: float = 1.0
    next_scale: float = 1.0

    @property
    def arguments(self) -> list[Any]:
        """From bias to eps; out stands for what is not read."""
        given = self.bias, self.beta, self.s, self.total, self.out, self.before, self.query
        tensors = [self.out if x is None else x.contiguous() for x in given]
        return [*tensors, int(self.more), self.scale, self.next_scale, EPS]

    def constants(self, rows: int, d: int, chunks: int, warps: int, store: bool = False) -> dict[str, Any]:
        options = {"KIND": self.kind, "BIAS": self.bias is not None, "STORE": store}
        return {**plan.finish(rows, d, chunks, warps), **options}


def finish_alone(parts: Tensor, finish: Finish, counters: Tensor | None = None) -> None:
    """`finish` of parts (chunks, .., D) in a launch of its own; counters, if there are any, are 0 after it."""
    from . import epilogue

    chunks, d = parts.shape[0], parts.shape[-1]
    rows, count = parts.numel() // (chunks * d), 0 if counters is None else counters.numel()
    launch(epilogue.finish_alone, (plan.finishers(rows),))(
        parts, finish.out if counters is None else counters, count, chunks, rows, 1, *finish.arguments, D=d,
        num_warps=4, **finish.constants(rows, d, chunks, 4),
    )  # fmt: skip


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis, in order."""
    if parts.shape[0] == 1:
        return parts[0].to(dtype)
    out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    finish_alone(parts, Finish("sum", out))
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
            self.at = {"AT": tuple(self.window.constants.values())}
        else:
            self.u, pose = u.contiguous(), n.c * n.d
            self.at = {"AT": (1, 1, n.g * pose, 0, 0, 1, pose, 0, 0)}
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

    def plan(self, kernel: str) -> tuple[plan.Tile, plan.Cut, dict[str, Any]]:
        """A kernel's tile, how its sums are cut, and all its constants."""
        t = plan.tile(self.n, kernel, self.precision == EXACT)
        bound = {} if t.registers is None else {"maxnreg": t.registers}
        tile = {"BT": t.bt, "IC": t.ic, "CP": t.cp, "DP": t.dp, "HP": t.hp, "num_warps": t.warps, **bound}
        numbers = {"PRECISION": self.precision, "GAIN": self.gain}
        return t, plan.cut(self.n, t, kernel), {**self.shape, **tile, **self.given, **numbers, **self.at}

    def counters(self, kernel: str) -> int:
        """How many a launch with couplings has: for its sums, and for each chunk of children and of examples.

        In whole 16 bytes, so that those of every iteration are aligned and kernels compile once.
        """
        chunks, batches, _ = self.plan(kernel)[1].grid
        return ceil_div(1 + chunks * batches, 4) * 4

    def forward(self, lse: Tensor, counters: Tensor, finish: Finish) -> None:
        """What `finish` says of s; lse (B, G) is written if couplings depend on anything. counters: 0."""
        from . import kernels, uniform

        n = self.n
        if self.coupled:
            t, cut, constants = self.plan("forward")
            chunks, batches, groups = cut.grid
            parts, programs, of_end = self._end(finish, chunks, t.warps)
            programs += batches * (ceil_div(n.g, t.ic) + chunks * groups)
            launch(kernels.attend_forward, (programs,))(
                *self.tensors, lse, parts, counters, n.b, cut.tiles, cut.parents, *finish.arguments, LEAKY=self.leaky,
                **constants, **of_end,
            )  # fmt: skip
            return
        constants, (rows, columns, parents) = self._uniform("uniform_sum")
        tiles, chunks = self._chunks("uniform_sum", columns, rows * parents, n.parents)
        parts, programs, of_end = self._end(finish, chunks, constants["num_warps"])
        weight = self.weight.permute(0, 3, 2, 1).contiguous() if n.many else self.weight
        launch(uniform.uniform_forward, (parents * rows * chunks + programs,))(
            self.u, weight, parts, counters, n.b, tiles, chunks, self.share, *finish.arguments, **constants, **of_end
        )

    def _end(self, finish: Finish, chunks: int, warps: int) -> tuple[Tensor, int, dict[str, Any]]:
        """Memory for partial s (chunks, B, J, D), programs that finish, and their constants. One chunk is what it would
        be summed up to, if that is kept in fp32.
        """
        n, d, kind = self.n, self.n.c * self.n.h, finish.kind
        kept = finish.out if kind == "sum" else finish.s
        whole = chunks == 1 and kept is not None and kept.dtype == torch.float32
        parts = kept if whole and kept is not None else empty_fp32(self.u, chunks, n.b, n.j, d)
        store = finish.s is not None and (not whole or (kind == "squash" and finish.bias is not None))
        programs = 0 if whole and kind == "sum" else plan.finishers(n.b * n.j)
        return parts, programs, finish.constants(n.b * n.j, d, chunks, warps, store)

    def gradients(self, dtype: torch.dtype, alone: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Memory for gu in `dtype` and for partial gW and gl, of this step alone or of several."""
        n = self.n
        batches = self.plan("backward")[1].grid[1]
        if alone and not self.coupled:
            rows, columns, parents = self._uniform("uniform_weight_gradient")[1]
            batches = self._chunks("uniform_weight_gradient", rows, columns * parents, n.weight)[1]
        gl = (batches, n.g, n.j) if self.given["LOGITS"] else (1, 0)
        gu = torch.empty_strided(self.u.shape, self.strides, dtype=dtype, device=self.u.device)
        return gu, empty_fp32(self.u, batches, *self.weight.shape), empty_fp32(self.u, *gl)

    def backward(
        self, gs: Tensor, lse: Tensor, counters: Tensor, into: tuple[Tensor, Tensor, Tensor], again: bool,
        finish: Finish | None = None,
    ) -> None:  # fmt: skip
        """gu, gW and gl are written to `into`, or added to what it holds if `again`. finish: of gq, if wanted."""
        from . import kernels

        n, (gu, gw, gl) = self.n, into
        delta, (t, cut, constants) = empty_fp32(gs, n.b, n.g), self.plan("backward")
        chunks, batches, groups = cut.grid
        end = Finish("none", gs) if finish is None else finish
        constants |= {"DETACH": self.detach, "STAGES": t.stages, **end.constants(n.b * n.j, n.c * n.h, chunks, t.warps)}

        def run(examples: slice, rows: slice, out: Tensor, of_poses: bool, of_parents: bool, again: bool) -> None:
            count = rows.stop - rows.start
            poses = ceil_div(count, t.bt) * ceil_div(n.g, t.ic) * of_poses
            sums, last = chunks * batches * groups * of_parents, plan.finishers(n.b * n.j) * of_parents
            query = self.query[rows] if self.given["QUERY"] else self.query
            gq = empty_fp32(gs, *((chunks, n.b, n.j, n.c * n.h) if of_parents and finish is not None else (1, 0)))
            launch(kernels.attend_backward, (poses + sums + last * (finish is not None),))(
                gs[rows], self.u[examples], self.weight, query, self.logits, lse[rows], out, delta[rows], gw, gq, gl,
                counters, count, poses, sums, cut.tiles, cut.batches, cut.parents, int(again), *end.arguments,
                **constants,
            )  # fmt: skip

        self._run(run, gu, True, again)

    def _run(self, run: Callable[..., None], gu: Tensor, together: bool, again: bool) -> None:
        """Gradients of poses and of parents, in one launch if `together`; of an image's poses in launches of a few
        examples each: patches are larger than it.
        """
        n, window, batch = self.n, self.window, self.u.shape[0]
        every = slice(0, batch), slice(0, n.b)
        if window is None:
            run(*every, gu, True, together, again)
        else:
            together, count = False, plan.examples(n, batch)
            patches = empty_fp32(gu, count * window.places, n.g, n.c * n.d)
            for examples, rows in window.spans(batch, count):
                run(examples, rows, patches, True, False, False)
                fold(patches, gu[examples], window, again)
            del patches  # before what is next
        if not together:
            run(*every, gu, False, True, again)

    def finished(self, into: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """gu, gW and gl, in the dtypes of what they are gradients of."""
        gu, gw, gl = into
        return gu.to(self.u.dtype), sum_parts(gw, self.weight.dtype), sum_parts(gl, torch.float32)

    def _uniform(self, kernel: str) -> tuple[dict[str, Any], tuple[int, int, int]]:
        """Constants of a kernel of equal couplings, and tiles of its rows, columns (i, k) and (j, h)."""
        n, t = self.n, plan.uniform(kernel, self.n)
        tile = {"R": t.rows, "N": t.columns, "M": t.parents, "STAGES": t.stages, "num_warps": t.warps}
        tiles = ceil_div(n.b * n.c, t.rows), ceil_div(n.g * n.d, t.columns), ceil_div(n.j * n.h, t.parents)
        return {**self.shape, "PRECISION": self.precision, "COPIED": n.many, **tile, **self.at}, tiles

    def _chunks(self, kernel: str, tiles: int, programs: int, copy: int) -> tuple[int, int]:
        """Tiles of a program and chunks, each of which leaves a copy of so many elements."""
        return plan.chunks(tiles, programs, self.n.room // copy, plan.uniform(kernel, self.n).resident)

    def uniform_backward(
        self, gs: Tensor, counters: Tensor, into: tuple[Tensor, Tensor, Tensor], again: bool
    ) -> tuple[Tensor, Tensor]:
        """gu and gW where couplings depend on nothing, with what `into` holds if `again`."""
        from . import uniform

        n, (gu, gw, _), copies = self.n, into, into[1].shape[0]
        kernels = "uniform_pose_gradient", "uniform_weight_gradient"
        (of_pose, (_, columns, _)), (of_weight, (tiles, poses, parents)) = (self._uniform(k) for k in kernels)
        together = of_pose == of_weight
        weight = self.weight.permute(2, 1, 0, 3).contiguous() if n.many else self.weight
        halves = n.many and self.u.dtype == torch.float32 and self.precision == "tf32"
        twice = of_weight["M"] > 64
        of_weight["M"] //= 1 + twice
        whole = copies == 1 and self.weight.dtype == torch.float32
        gw_out = gw[0] if whole else torch.empty_like(self.weight)
        gu_out = gu if gu.dtype == self.u.dtype or self.window else torch.empty_like(self.u)
        finish = plan.finish(gw_out.numel() // n.h, n.h, copies, of_weight["num_warps"])
        programs = parents * poses * copies + (0 if whole else plan.FINISHERS)

        def run(examples: slice, rows: slice, out: Tensor, of_poses: bool, of_parents: bool, again: bool) -> None:
            constants, b = of_weight if of_parents else of_pose, rows.stop - rows.start
            count = ceil_div(b * n.c, constants["R"]) * columns * of_poses
            launch(uniform.uniform_backward, (count + programs * of_parents,))(
                gs[rows], self.u[examples], weight, gu, out, gw, gw_out, counters, b, ceil_div(tiles, copies), copies,
                count, self.share, self.share / self.gain if halves else self.share, int(again), TWICE=int(twice),
                HALVES=halves, POSES=of_poses, WEIGHTS=of_parents, **constants, **finish,
            )  # fmt: skip

        self._run(run, gu_out, together, again)
        return gu_out.to(self.u.dtype), gw_out
