"""Launches of `attend`'s kernels: what a step costs in memory is decided here.

Triton is imported when a kernel is first launched, not before.
"""

from __future__ import annotations

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


def empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def added_up(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the first axis, in order."""
    from . import _attend_kernels as kernels

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
        self.leaky, self.detach, self.share = leaky, detach, 1.0 / (self.n.j + leaky)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.u, self.weight, self.query, self.logits

    def constants(self, t: plan.Tile) -> dict[str, Any]:
        _, g, j, c, d, h = self.n
        return {
            "G": g, "J": j, "C": c, "D": d, "H": h,
            "BT": t.bt, "IC": t.ic, "P": t.p, "CP": t.cp, "DP": t.dp, "HP": t.hp, "STAGES": t.stages,
            **self.given, "PRECISION": precision(self.u.dtype), "num_warps": t.p,
        }  # fmt: skip

    def tiles(self, t: plan.Tile) -> tuple[int, int, int]:
        """Tiles of children, of examples, of parents."""
        return plan.ceil_div(self.n.g, t.ic), plan.ceil_div(self.n.b, t.bt), plan.ceil_div(self.n.j, t.p)

    def over_children(self, kernel: str) -> tuple[plan.Tile, plan.Cut, tuple[int, int, int]]:
        """Tile, cut and grid of a kernel whose programs add up over children."""
        t = plan.tile(self.n, kernel)
        children, examples, parents = self.tiles(t)
        cut = plan.cut(children, examples * parents, self.n.b * self.n.j * self.n.c * self.n.h)
        return t, cut, (parents, examples, cut.chunks)

    def over_examples(self, kernel: str) -> tuple[plan.Tile, plan.Cut, tuple[int, int, int]]:
        t = plan.tile(self.n, kernel)
        children, examples, parents = self.tiles(t)
        cut = plan.cut(examples, children * parents, self.weight.numel())
        return t, cut, (parents, children, cut.chunks)

    def forward(self, lse: Tensor) -> Tensor:
        """Partial s (chunks, B, J, D); lse (B, G) is written if couplings depend on anything."""
        from . import _attend_kernels as kernels

        n = self.n
        if self.coupled:
            t = plan.tile(n, "log_sum_exp")
            kernels.log_sum_exp[self.tiles(t)[:2]](*self.tensors, lse, n.b, LEAKY=self.leaky, **self.constants(t))
        t, cut, grid = self.over_children("weighted_sum")
        parts = empty(self.u, cut.chunks, n.b, n.j, n.c * n.h)
        kernels.weighted_sum[grid](*self.tensors, lse, parts, n.b, cut.tiles, self.share, **self.constants(t))
        return parts

    def gradients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Room for gu in `dtype` and for partial gW and gl."""
        n, (_, cut, _) = self.n, self.over_examples("weight_gradient")
        gl = (cut.chunks, n.g, n.j) if self.given["LOGITS"] else (1, 0)
        gu = torch.empty(self.u.shape, dtype=dtype, device=self.u.device)
        return gu, empty(self.u, cut.chunks, *self.weight.shape), empty(self.u, *gl)

    def backward(self, gs: Tensor, lse: Tensor, into: tuple[Tensor, Tensor, Tensor], again: bool) -> Tensor:
        """Partial gq (chunks, B, J, D); gu, gW and gl go into `into`, on top of what is there if `again`."""
        from . import _attend_gradients as kernels

        n, (gu, gw, gl) = self.n, into
        delta = empty(gs, *((n.b, n.g) if self.coupled else (0,)))
        t = plan.tile(n, "pose_gradient")
        kernels.pose_gradient[self.tiles(t)[:2]](
            gs, *self.tensors, lse, gu, delta, n.b, self.share, int(again), DETACH=self.detach, **self.constants(t)
        )
        gq = empty(gs, 1, 0)
        if self.given["QUERY"]:
            t, cut, grid = self.over_children("query_gradient")
            gq = empty(gs, cut.chunks, n.b, n.j, n.c * n.h)
            kernels.query_gradient[grid](gs, *self.tensors, lse, delta, gq, n.b, cut.tiles, **self.constants(t))
        t, cut, grid = self.over_examples("weight_gradient")
        kernels.weight_gradient[grid](
            gs, *self.tensors, lse, delta, gw, gl, n.b, cut.tiles, self.share, int(again),
            DETACH=self.detach, **self.constants(t),
        )  # fmt: skip
        return gq
