"""Launches of the backward kernels: which gradients there are, in what tiles and chunks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from . import _fit_backward as kernels
from ._fit_forward import LANES, Source, Walk, child_lanes, walk_children
from ._fit_lanes import HEAD

GROUPS = 1  # of children a lane sums the weights' gradient for: they share what is read of a parent


class Fitted(NamedTuple):
    """What the forward pass left: the parents it began with, couplings and moments."""

    prior: Tensor | None  # (B, J)
    centre: Tensor | None  # (B, D, J)
    scale: Tensor | None  # (B, D, J): sigma^2
    first: Tensor | None  # (I, J): couplings without parents; None: 1 / J
    normaliser: Tensor | None  # (B, I)
    gate: Tensor  # (B, I): child's weight times its share
    beta: Tensor | None  # (I, J)
    weight: Tensor  # (B, J)
    mean: Tensor  # (B, D, J)
    variance: Tensor  # (B, D, J)

    @property
    def density(self) -> bool:
        return self.prior is not None


class Context(NamedTuple):
    """What every backward kernel reads."""

    source: Source
    fitted: Fitted
    table: Tensor  # (B, (4 + 4 D) / RUN, J, RUN)
    score: Tensor  # (B, J): gradient
    bias: Tensor | None  # (B, D, J): its gradient in each example

    def pointers(self) -> tuple[Tensor, ...]:
        f, none = self.fitted, self.table
        first, z, beta = (none if x is None else x for x in (f.first, f.normaliser, f.beta))
        return self.table, first, z, f.gate, beta, self.score

    def options(self) -> dict[str, Any]:
        f = self.fitted
        return dict(
            **self.source.options, DENSITY=f.density, FIRST=f.first is not None, SCORE=f.beta is not None, num_warps=1
        )


def walk_batch(source: Source) -> Walk:
    """A tile of groups x parents walks over the children of the batch, in chunks that fill a GPU."""
    b, i, j, r = source.sizes
    groups = i // r
    parents = min(triton.next_power_of_2(j), LANES)
    rows = min(LANES // parents * GROUPS, triton.next_power_of_2(groups))
    programs = triton.cdiv(groups, rows) * triton.cdiv(j, parents)
    return Walk(rows, parents, max(triton.cdiv(b * r, max(4096 // programs, 1)), min(8, b * r)))


def context(source: Source, fitted: Fitted, gradients: tuple[Tensor, Tensor, Tensor, Tensor], eps: float) -> Context:
    """gradients: of weight (B, J), mean and variance (B, D, J), score (B, J)."""
    b, d, j = fitted.mean.shape
    g_weight, g_mean, g_variance, g_score = (g.contiguous() for g in gradients)
    run = source.run
    table = torch.empty(b, (HEAD.value + 4 * d) // run, j, run, device=g_mean.device)
    g_bias = None if source.bias is None else torch.empty(b, d, j, device=g_mean.device)
    prior, centre, scale = ((fitted.mean if x is None else x) for x in (fitted.prior, fitted.centre, fitted.scale))
    kernels.slopes[(triton.cdiv(b * j, 64),)](
        prior, centre, scale, fitted.weight, fitted.mean, fitted.variance, g_weight, g_mean, g_variance,
        table if source.bias is None else source.bias, table if g_bias is None else g_bias, table, eps,
        b * j, J=j, D=d, RUN=run, DENSITY=fitted.density, BIAS=g_bias is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return Context(source, fitted, table, g_score, g_bias)


def child_sums(x: Context) -> Tensor:
    """s_i = sum_j p_ij dL/dw_ij, (B, I)."""
    b, i, _, r = x.source.sizes
    lanes = child_lanes(x.source, "child_sums")
    s = torch.empty(b, i, device=x.table.device)
    kernels.child_sums[(b, triton.cdiv(i, lanes))](
        x.source.poses, x.source.by_child, *x.pointers(), s, i, r, G=x.source.groups, BLOCK=lanes, **x.options()
    )
    return s


def child_gradients(x: Context, s: Tensor, g_z: Tensor | None, sums: bool) -> Tensor:
    """Gradient of the poses, like u; with `sums` it writes s, else it reads it."""
    b, i, _, r = x.source.sizes
    lanes = child_lanes(x.source, "child_gradients")
    g_u = torch.empty_like(x.source.poses, memory_format=torch.contiguous_format)
    kernels.child_gradients[(b, triton.cdiv(i, lanes))](
        x.source.poses, x.source.by_child, *x.pointers(), s, s if g_z is None else g_z, g_u, i, r,
        G=x.source.groups, SHARED=g_z is not None, SUM=sums, BLOCK=lanes, **x.options(),
    )  # fmt: skip
    return g_u


def parent_gradients(x: Context, s: Tensor, g_z: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
    """Gradients of prior (B, J), mean and variance (B, D, J); and that of stored votes or of the one transform."""
    b, i, j, r = x.source.sizes
    _, k, h = x.source.pose
    d, device = x.source.dim, s.device
    one = x.source.one
    if not (x.fitted.density or one or k == 0):
        return [], None
    walk = walk_children(x.source)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * d + 1, j, device=device) if x.fitted.density else s
    weight = x.source.by_parent
    g_weight = torch.empty(grid[2] * b, k, j, h, device=device) if one else torch.empty_like(weight) if k == 0 else s
    kernels.parent_gradients[grid](
        x.source.poses, weight, *x.pointers(), s, s if g_z is None else g_z, parts, g_weight, b, i, r, walk.steps,
        ROWS=walk.rows, PARENTS=walk.parents, SHARED=g_z is not None, ONE=one, **x.options(),
    )  # fmt: skip
    g_source = g_weight.sum(0, keepdim=True).to(weight.dtype) if one else g_weight if k == 0 else None
    if x.fitted.scale is None:
        return [], g_source
    g_prior = torch.empty(b, j, device=device)
    g_mean, g_variance = torch.empty(b, d, j, device=device), torch.empty(b, d, j, device=device)
    kernels.finish_parents[(triton.cdiv(b * d * j, 64),)](
        parts, x.fitted.scale, g_prior, g_mean, g_variance, parts if x.bias is None else x.bias, b * d * j, grid[2],
        J=j, D=d, BIAS=x.bias is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return [g_prior, g_mean, g_variance], g_source


def weight_gradients(x: Context, s: Tensor, g_z: Tensor | None) -> Tensor:
    """Gradient of W, (G, K, J, H)."""
    b, i, j, r = x.source.sizes
    weight = x.source.by_parent
    walk = walk_batch(x.source)
    grid = walk.grid(i // r, j, b * r)
    parts = torch.empty(grid[2], *weight.shape, device=s.device)
    kernels.weight_gradients[grid](
        x.source.poses, weight, *x.pointers(), s, s if g_z is None else g_z, parts, b, i, r, walk.steps,
        ROWS=walk.rows, PARENTS=walk.parents, SHARED=g_z is not None, **x.options(),
    )  # fmt: skip
    return parts.sum(0).to(weight.dtype)


def pair_gradients(x: Context) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of beta and of the first coupling, (I, J) each."""
    b, i, j, r = x.source.sizes
    f = x.fitted
    if f.beta is None and f.first is None:
        return None, None
    g_beta, g_first = (None if y is None else torch.empty_like(y) for y in (f.beta, f.first))
    parents = min(triton.next_power_of_2(j), LANES)
    kernels.pair_gradients[(i, triton.cdiv(j, parents))](
        x.source.poses, x.source.by_parent, *x.pointers(), x.table if g_beta is None else g_beta,
        x.table if g_first is None else g_first, b, i, r, PARENTS=parents, **x.options(),
    )  # fmt: skip
    return g_beta, g_first
