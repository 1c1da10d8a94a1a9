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


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis, in order."""
    from . import epilogue

    if parts.shape[0] == 1:
        return parts[0].to(dtype)
    out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    rows, d = out.numel() // out.shape[-1], out.shape[-1]
    programs, constants = plan.finish(rows, d, parts.shape[0], 4)
    epilogue.sum_parts[(programs,)](parts, out, parts.shape[0], rows, D=d, **constants, num_warps=4)
    return out


class End(NamedTuple):
    """What `epilogue.finish` makes of s: its KIND, and tensors where it has them."""

    kind: str
    out: Tensor
    s: Tensor | None = None  # (B, J, D)
    bias: Tensor | None = None  # (J, D), or LayerNorm's scale (D,)
    beta: Tensor | None = None
    seen: Tensor | None = None
    scale: float = 1.0


class Earlier(NamedTuple):
    """What `epilogue.finish_gradient` makes for the iteration before: its KIND, and tensors where it has them."""

    kind: str
    out: Tensor  # gs
    s: Tensor | None = None  # (B, J, D)
    total: Tensor | None = None
    bias: Tensor | None = None
    beta: Tensor | None = None
    before: Tensor | None = None  # s of the iteration before that one
    query: Tensor | None = None  # which follows from it
    more: bool = False
    scale: float = 1.0
    next_scale: float = 1.0

    @property
    def tensors(self) -> list[Tensor]:
        given = self.bias, self.beta, self.s, self.total, self.out, self.before, self.query
        return [self.out if x is None else x.contiguous() for x in given]  # out stands for what is not read

    @property
    def numbers(self) -> tuple[int, float, float, float]:
        return int(self.more), self.scale, self.next_scale, EPS

    @property
    def options(self) -> dict[str, Any]:
        return {"KIND": self.kind, "BIAS": self.bias is not None}


def output_gradient(grad: Tensor, counters: Tensor, earlier: Earlier) -> None:
    """gs of the last iteration from the gradient of its output; counters 0."""
    from . import epilogue

    d = grad.shape[-1]
    programs, constants = plan.finish(grad.numel() // d, d, 1, 4)
    epilogue.output_gradient[(programs,)](
        grad.contiguous(), counters, counters.numel(), grad.numel() // d, *earlier.tensors, *earlier.numbers, D=d,
        DP=constants["RP"], RT=constants["RT"], CT=constants["CT"], **earlier.options, num_warps=4,
    )  # fmt: skip


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

    def plan(self, kernel: str) -> tuple[plan.Tile, plan.Cut, dict[str, Any]]:
        """A kernel's tile, how its sums are cut, and all its constants."""
        t = plan.tile(self.n, kernel, self.precision == EXACT)
        bound = {} if t.registers is None else {"maxnreg": t.registers}
        tile = {"BT": t.bt, "IC": t.ic, "CP": t.cp, "DP": t.dp, "HP": t.hp, "num_warps": t.warps, **bound}
        numbers = {"PRECISION": self.precision, "GAIN": self.gain}
        return t, plan.cut(self.n, t, kernel), {**self.shape, **tile, **self.given, **numbers, **self.at}

    def counters(self, kernel: str) -> int:
        """How many a launch with couplings has: for its sums, and for each chunk of children and of examples."""
        chunks, batches, _ = self.plan(kernel)[1].grid
        return 1 + chunks * batches

    def forward(self, lse: Tensor, counters: Tensor, end: End) -> None:
        """What `end` says; lse (B, G) is written if couplings depend on anything. counters: 0."""
        from . import kernels

        if not self.coupled:
            return self._uniform_forward(counters, end)
        n, (t, cut, constants) = self.n, self.plan("forward")
        chunks, batches, groups = cut.grid
        parts, programs, finish, tensors = self._end(end, chunks, t.warps)
        programs += batches * (ceil_div(n.g, t.ic) + chunks * groups)
        kernels.attend_forward[(programs,)](
            *self.tensors, lse, parts, counters, *tensors, n.b, cut.tiles, cut.parents, int(end.seen is not None),
            end.scale, EPS, LEAKY=self.leaky, **constants, **finish,
        )  # fmt: skip

    def _end(self, end: End, chunks: int, warps: int) -> tuple[Tensor, int, dict[str, Any], list[Tensor]]:
        """Memory for partial s (chunks, B, J, D), programs that finish, their constants and tensors. Where there is one
        chunk it is what it would be summed up to, if that is kept and in fp32.
        """
        n, d = self.n, self.n.c * self.n.h
        kept = end.out if end.kind == "sum" else end.s
        whole = chunks == 1 and kept is not None and kept.dtype == torch.float32
        parts = kept if whole and kept is not None else empty_fp32(self.u, chunks, n.b, n.j, d)
        programs, constants = plan.finish(n.b * n.j, d, chunks, warps)
        store = end.s is not None and (not whole or (end.kind == "squash" and end.bias is not None))
        options = {"KIND": end.kind, "BIAS": end.bias is not None, "STORE": store}
        given = end.bias, end.beta, end.seen, end.s, end.out
        tensors = [end.out if x is None else x.contiguous() for x in given]  # out stands for what is not read
        return parts, 0 if whole and end.kind == "sum" else programs, {**constants, **options}, tensors

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
        earlier: Earlier | None = None,
    ) -> None:  # fmt: skip
        """What `earlier` says. gu, gW and gl are written to `into`, or added to what it holds if `again`."""
        from . import kernels

        n, (gu, gw, gl) = self.n, into
        delta, (t, cut, constants) = empty_fp32(gs, n.b, n.g), self.plan("backward")
        chunks, batches, groups = cut.grid
        gq = empty_fp32(gs, *((chunks, n.b, n.j, n.c * n.h) if earlier is not None else (1, 0)))
        end = Earlier("none", gs) if earlier is None else earlier
        finishing, finish = plan.finish(n.b * n.j, n.c * n.h, chunks, t.warps)
        finishing = 0 if earlier is None else finishing
        constants |= {"DETACH": self.detach, **finish, **end.options}

        def run(examples: slice, rows: slice, out: Tensor, poses: int, sums: int, last: int, again: bool) -> None:
            query = self.query[rows] if self.given["QUERY"] else self.query
            kernels.attend_backward[(poses + sums + last,)](
                gs[rows], self.u[examples], self.weight, query, self.logits, lse[rows], out, delta[rows], gw, gq, gl,
                counters, *end.tensors, rows.stop - rows.start, poses, sums, cut.tiles, cut.batches, cut.parents,
                int(again), *end.numbers, **constants,
            )  # fmt: skip

        every, sums, wide = slice(0, n.b), chunks * batches * groups, ceil_div(n.g, t.ic)
        if self.window is None:
            return run(slice(0, n.b), every, gu, ceil_div(n.b, t.bt) * wide, sums, finishing, again)

        def poses(examples: slice, rows: slice, out: Tensor) -> None:
            run(examples, rows, out, ceil_div(rows.stop - rows.start, t.bt) * wide, 0, 0, False)

        self._by_examples(poses, gu, again)
        run(slice(0, self.u.shape[0]), every, gu, 0, sums, finishing, again)

    def _by_examples(self, launch: Callable[[slice, slice, Tensor], None], gu: Tensor, again: bool) -> None:
        """Poses' gradients of an image, a few examples at a time: patches are larger than it."""
        n, window, batch = self.n, self.window, self.u.shape[0]
        assert window is not None
        count = plan.examples(n, batch)
        patches = empty_fp32(gu, count * window.places, n.g, n.c * n.d)
        for examples, rows in window.spans(batch, count):
            launch(examples, rows, patches)
            fold(patches, gu[examples], window, again)

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

    def _uniform_forward(self, counters: Tensor, end: End) -> None:
        from . import uniform

        n, (constants, (rows, columns, parents)) = self.n, self._uniform("uniform_sum")
        tiles, chunks = self._chunks("uniform_sum", columns, rows * parents, n.parents)
        parts, programs, finish, tensors = self._end(end, chunks, constants["num_warps"])
        weight = self.weight.permute(0, 3, 2, 1).contiguous() if n.many else self.weight
        uniform.uniform_forward[(parents * rows * chunks + programs,)](
            self.u, weight, parts, counters, *tensors, n.b, tiles, chunks, int(end.seen is not None), self.share,
            end.scale, EPS, **constants, **finish,
        )  # fmt: skip

    def uniform_backward(
        self, gs: Tensor, counters: Tensor, into: tuple[Tensor, Tensor, Tensor], again: bool
    ) -> tuple[Tensor, Tensor]:
        """gu and gW where couplings depend on nothing, with what `into` holds if `again`."""
        from . import uniform

        n, (gu, gw, _), copies = self.n, into, into[1].shape[0]
        kernels = "uniform_pose_gradient", "uniform_weight_gradient"
        (of_poses, (_, columns, _)), (of_weight, (rows, poses, parents)) = (self._uniform(k) for k in kernels)
        weight = self.weight.permute(2, 1, 0, 3).contiguous() if n.many else self.weight
        halves = n.many and self.u.dtype == torch.float32 and self.precision == "tf32"
        twice = of_weight["M"] > 64
        of_weight["M"] //= 1 + twice
        share = self.share / self.gain if halves else self.share
        whole = copies == 1 and self.weight.dtype == torch.float32
        gw_out = gw[0] if whole else torch.empty_like(self.weight)
        programs, finish = plan.finish(gw_out.numel() // n.h, n.h, copies, of_weight["num_warps"])
        sums = parents * poses * copies

        def run(
            examples: slice, rows_: slice, out: Tensor, programs: int, constants: dict[str, Any], again: bool, **do: bool
        ) -> None:
            count = ceil_div((rows_.stop - rows_.start) * n.c, constants["R"]) * columns if do["POSES"] else 0
            uniform.uniform_backward[(count + programs,)](
                gs[rows_], self.u[examples], weight, gu, out, gw, gw_out, counters, rows_.stop - rows_.start,
                ceil_div(rows, copies), copies, count, self.share, share, int(again), TWICE=int(twice), HALVES=halves,
                **constants, **finish, **do,
            )  # fmt: skip

        programs = sums + (0 if whole else programs)
        every, gu_out = slice(0, n.b), gu if gu.dtype == self.u.dtype or self.window else torch.empty_like(self.u)
        if self.window is None and of_poses == of_weight:
            run(slice(0, n.b), every, gu_out, programs, of_weight, again, POSES=True, WEIGHTS=True)
            return gu_out, gw_out
        if self.window is None:
            run(slice(0, n.b), every, gu_out, 0, of_poses, again, POSES=True, WEIGHTS=False)
        else:
            self._by_examples(
                lambda e, r, out: run(e, r, out, 0, of_poses, False, POSES=True, WEIGHTS=False), gu, again
            )
        run(slice(0, self.u.shape[0]), every, gu_out, programs, of_weight, again, POSES=False, WEIGHTS=True)
        return gu_out.to(self.u.dtype), gw_out
