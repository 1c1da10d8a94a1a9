"""Launches of `attend`'s kernels: what a step costs in memory is decided here.

Triton is imported when a kernel is first launched, not before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import _attend_plan as plan


def sizes(u: Tensor, weight: Tensor) -> plan.Sizes:
    b, g, _, c, d = u.shape
    return plan.Sizes(b, g, weight.shape[0], c, d, weight.shape[3])


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


def added_up(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis, in order."""
    from . import _attend_squash as kernels

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
        leaky: bool,
        detach: bool = False,
    ) -> None:
        self.n = sizes(u, weight)
        self.u, self.weight = u.contiguous(), weight.contiguous()
        self.query = u if query is None else query.contiguous()  # any tensor stands for one that is not read
        self.logits = u if logits is None else logits.contiguous()
        self.given = {"QUERY": query is not None, "LOGITS": logits is not None}
        self.coupled = query is not None or logits is not None
        self.leaky, self.detach, self.share = leaky, detach, mend(u) / (self.n.j + leaky)

    def shape(self) -> dict[str, Any]:
        _, g, j, c, d, h = self.n
        return {"G": g, "J": j, "C": c, "D": d, "H": h, "PRECISION": precision(self.u.dtype)}

    def tile(self, t: plan.Tile) -> dict[str, Any]:
        tile = {"BT": t.bt, "IC": t.ic, "CP": t.cp, "DP": t.dp, "HP": t.hp, "num_warps": t.warps}
        return {**self.shape(), **tile}

    def room(self, block: tuple[int, int]) -> Tensor:
        """For couplings of a block of children, (J, B, children)."""
        return empty(self.u, self.n.j, self.n.b, block[1] - block[0])

    def forward(self, lse: Tensor) -> Tensor:
        """Partial s (chunks, B, J, D); lse (B, G) is written if couplings depend on anything."""
        from . import _attend_kernels as kernels

        n = self.n
        if not self.coupled:
            return self._plain_sum()
        t, parts = plan.tile(n, "couplings"), []
        for block in plan.children(n):
            c = self.room(block)
            grid = plan.ceil_div(n.b, t.bt), plan.ceil_div(block[1] - block[0], t.ic)
            kernels.couplings[grid](
                self.u, self.weight, self.query, self.logits, lse, c, n.b, *block,
                LEAKY=self.leaky, MEND=mend(self.u), **self.given, **self.tile(t),
            )  # fmt: skip
            parts.append(self._coupled_sum(c, block))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def backward(self, gs: Tensor, lse: Tensor, into: tuple[Tensor, Tensor, Tensor], again: bool) -> Tensor:
        """Partial gq (chunks, B, J, D); gu, gW and gl go into `into`, on top of what is there if `again`."""
        from . import _attend_kernels as kernels

        n, (gu, gw, gl) = self.n, into
        if not self.coupled:
            self._plain_gradients(gs, gu, gw, again)
            return empty(gs, 1, 0)
        t, parts = plan.tile(n, "pose_gradient"), []
        for block in plan.children(n):
            c, ga = self.room(block), self.room(block)
            grid = plan.ceil_div(n.b, t.bt), plan.ceil_div(block[1] - block[0], t.ic)
            kernels.pose_gradient[grid](
                gs, self.u, self.weight, self.query, self.logits, lse, gu, c, ga, n.b, *block, int(again),
                DETACH=self.detach, MEND=mend(self.u), **self.given, **self.tile(t),
            )  # fmt: skip
            if self.given["QUERY"]:
                parts.append(self._coupled_sum(ga, block))
            if self.given["LOGITS"]:
                rows = slice(*block)
                gl[rows] = ga.sum(1).t() / mend(self.u) + (gl[rows] if again else 0.0)
            self._weight_gradient(gs, c, ga, gw, block, again)
        return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else empty(gs, 1, 0)

    def gradients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Room for gu in `dtype`, for partial gW and for gl."""
        n = self.n
        gu = torch.empty(self.u.shape, dtype=dtype, device=self.u.device)
        gl = empty(self.u, *((n.g, n.j) if self.given["LOGITS"] else (0,)))
        return gu, empty(self.u, self.over_examples().chunks, *self.weight.shape), gl

    def over_examples(self) -> plan.Cut:
        """How sums over examples are cut, the same for all blocks."""
        n, t = self.n, plan.tile(self.n, "weight_gradient")
        programs = plan.ceil_div(plan.children(n)[0][1], t.ic) * plan.ceil_div(n.j, t.p)
        return plan.cut(plan.ceil_div(n.b, t.bt), programs, self.weight.numel())

    def _coupled_sum(self, c: Tensor, block: tuple[int, int]) -> Tensor:
        from . import _attend_sums as kernels

        n, t = self.n, plan.tile(self.n, "coupled_sum")
        groups, examples = plan.ceil_div(n.j, t.p), plan.ceil_div(n.b, t.bt)
        out = n.b * n.j * n.c * n.h
        cut = plan.cut(plan.ceil_div(block[1] - block[0], t.ic), groups * examples, out * len(plan.children(n)))
        parts = empty(self.u, cut.chunks, n.b, n.j, n.c * n.h)
        kernels.coupled_sum[groups, examples, cut.chunks](
            self.u, self.weight, c, parts, n.b, *block, cut.tiles, P=t.p, STAGES=t.stages, **self.tile(t)
        )
        return parts

    def _weight_gradient(
        self, gs: Tensor, c: Tensor, ga: Tensor, gw: Tensor, block: tuple[int, int], again: bool
    ) -> None:
        from . import _attend_sums as kernels

        n, t, cut = self.n, plan.tile(self.n, "weight_gradient"), self.over_examples()
        grid = plan.ceil_div(n.j, t.p), plan.ceil_div(block[1] - block[0], t.ic), cut.chunks
        kernels.weight_gradient[grid](
            gs, self.u, self.query, c, ga, gw, n.b, *block, cut.tiles, int(again),
            MOVED=self.given["QUERY"] and not self.detach, P=t.p, STAGES=t.stages, **self.tile(t),
        )  # fmt: skip

    def _plain(self) -> tuple[dict[str, Any], tuple[int, int, int], int]:
        """Constants of the kernels of equal couplings, tiles of their rows, columns (i, k) and (j, h), and rows."""
        n, (rows, columns, warps, parents, stages) = self.n, plan.PLAIN
        tile = {"R": rows, "N": columns, "M": parents, "STAGES": stages, "num_warps": warps}
        tiles = plan.ceil_div(n.b * n.c, rows), plan.ceil_div(n.g * n.d, columns), plan.ceil_div(n.j * n.h, parents)
        return {**self.shape(), **tile}, tiles, n.b * n.c

    def _plain_sum(self) -> Tensor:
        from . import _attend_plain as kernels

        n, (constants, (r, c, p), rows) = self.n, self._plain()
        cut = plan.cut(c, r * p, n.b * n.j * n.c * n.h)
        parts = empty(self.u, cut.chunks, n.b, n.j, n.c * n.h)
        kernels.plain_sum[p, r, cut.chunks](self.u, self.weight, parts, rows, cut.tiles, self.share, **constants)
        return parts

    def _plain_gradients(self, gs: Tensor, gu: Tensor, gw: Tensor, again: bool) -> None:
        from . import _attend_plain as kernels

        constants, (r, c, p), rows = self._plain()
        kernels.plain_pose_gradient[c, r](gs, self.weight, gu, rows, self.share, int(again), **constants)
        tiles = plan.ceil_div(r, gw.shape[0])
        kernels.plain_weight_gradient[p, c, gw.shape[0]](
            gs, self.u, gw, rows, tiles, self.share, int(again), **constants
        )
