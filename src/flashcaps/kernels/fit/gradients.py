"""Launches of the backward kernels: which gradients there are, and where they are summed.

Iterations go by from the last to the first. Gradients of poses, transforms, biases and betas have one place each, to
which every iteration adds; tables, sums and the gradients of parents are an iteration's own, and go with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from . import backward as kernels
from . import pairs as pairs
from . import slopes as ends
from . import tiles_back as tiles
from .forward import Found, Rule, child_lanes
from .lanes import HEAD
from .source import LANES, Source, walk_batch, walk_children, walk_tiles

GROUPS = 1  # of children a lane sums the weights' gradient for: they share what is read of a parent
BOUND = 168  # registers, where a lane would take a few more: half as many warps again, for some that are put aside


class Parents(NamedTuple):
    """Gradients of the parents an iteration found; None: zero."""

    mean: Tensor | None  # (B, D, J)
    variance: Tensor | None  # (B, D, J)
    logit: Tensor | None  # (B, J)


class Fitted(NamedTuple):
    """What an iteration began with, and what it found."""

    below: Found | None  # the parents it began with; None the first time
    above: Found
    normaliser: Tensor | None  # (B, I)
    gate: Tensor  # (B, I): child's weight times its share
    first: Tensor | None  # (I, J): couplings without parents; None: 1 / J
    beta: Tensor | None  # (I, J)
    scale: float  # of logits
    eps: float

    @property
    def density(self) -> bool:
        return self.below is not None


@dataclass
class Sums:
    """Gradients of what all iterations share, as far as they are summed; None: not begun."""

    u: Tensor | None = None  # (B, I, C K)
    weight: Tensor | None = None  # (chunks, J, K, G, H); one transform: (chunks * B, J, K, H)
    own: Tensor | None = None  # (chunks, J, C, G, H)
    beta: Tensor | None = None  # (chunks, I, J)
    first: Tensor | None = None  # (chunks, I, J)
    shift: Tensor | None = None  # (B, D, J)
    offset: Tensor | None = None  # (B, J)
    slope: Tensor | None = None  # (B, J)
    gate: Tensor | None = None  # (B, I)
    share: Tensor | None = None  # (B, I)


class Step(NamedTuple):
    """What every backward kernel of an iteration reads."""

    source: Source
    fitted: Fitted
    table: Tensor  # (B, (4 + 4 D) / RUN, J, RUN)
    score: Tensor  # (B, J): gradient of logits
    sums: Sums

    def pointers(self) -> tuple[Tensor, ...]:
        f, none = self.fitted, self.table
        first, z, beta = (none if x is None else x for x in (f.first, f.normaliser, f.beta))
        return self.table, first, z, f.gate, beta, self.score

    def options(self) -> dict[str, Any]:
        f = self.fitted
        return {
            **self.source.options, "DENSITY": f.density, "FIRST": f.first is not None, "SCORE": f.beta is not None
        }  # fmt: skip


def begin(
    source: Source, rule: Rule, fitted: Fitted, given: Parents, g_prior: Tensor | None, places: tuple[Tensor, Tensor],
    sums: Sums,
) -> Step:  # fmt: skip
    """An iteration's table, from the gradients of its parents and of the prior they are to the next.

    places: where the table (B, (4 + 4 D) / RUN, J, RUN) and the gradient of logits (B, J) are to be.
    """
    above, below = fitted.above, fitted.below or fitted.above
    (b, d, j), (table, g_score) = above.mean.shape, places
    given = Parents(*(None if x is None else x.contiguous() for x in given))
    again = g_prior is not None
    if not again:
        make = lambda wanted, *shape: torch.empty(*shape, device=table.device) if wanted else None  # noqa: E731
        sums.offset, sums.slope = make(rule.offset is not None, b, j), make(rule.slope is not None, b, j)
        sums.shift = make(source.shift is not None, b, d, j)
    none = [table if x is None else x for x in (
        rule.slope, source.shift, given.logit, g_prior, given.mean, given.variance
    )]  # fmt: skip
    out = [table if x is None else x for x in (sums.offset, sums.slope, sums.shift)]
    tensors = (
        above.logit, above.weight, above.mean, above.variance, below.logit, below.mean, below.variance, *none, g_score,
        *out, table, fitted.scale, fitted.eps,
    )  # fmt: skip
    known = {
        "DENSITY": fitted.density, **rule.options, "SHIFT": source.shift is not None, "GIVEN": given.logit is not None,
        "PRIOR": again, "MEAN": given.mean is not None, "VARIANCE": given.variance is not None, "AGAIN": again,
    }  # fmt: skip
    if source.tiled:
        tiles.wide_slopes[(b, source.blocks)](*tensors, **source.options, **known)
    else:
        size = {"J": j, "D": d, "RUN": source.run, "BLOCK": 64, "num_warps": 2}
        ends.slopes[(triton.cdiv(b * j, 64),)](*tensors, b * j, **size, **known)
    return Step(source, fitted, table, g_score, sums)


def new_table(source: Source, *more: int) -> Tensor:
    """Of what `begin` makes, `more` of them."""
    b, _, j, _ = source.sizes
    rows = (HEAD.value + 4 * source.dim) // source.run
    return torch.empty(*more, b, rows, j, source.run, device=source.by_parent.device)


def child_sums(x: Step, s: Tensor) -> None:
    """s_i = sum_j p_ij dL/dw_ij, (B, I)."""
    b, i, _, r = x.source.sizes
    if x.source.tiled:
        tiles.wide_child_sums[(b * i,)](x.source.by_parent, *x.pointers(), s, b, i, r, **x.options())
        return
    lanes = child_lanes(x.source, "child_sums")
    kernels.child_sums[(b, triton.cdiv(i, lanes))](
        *x.source.by_children, *x.pointers(), s, i, r, G=x.source.groups, BLOCK=lanes, **x.options(), **x.source.where,
        num_warps=1,
    )  # fmt: skip


def child_gradients(x: Step, s: Tensor, g_z: Tensor | None, sums: bool) -> None:
    """Gradient of the poses, like u; with `sums` it writes s, else it reads it."""
    b, i, _, r = x.source.sizes
    assert x.source.u is not None
    lanes = child_lanes(x.source, "child_gradients")
    again = x.sums.u is not None
    if x.sums.u is None:
        c, k, _ = x.source.pose
        x.sums.u = torch.empty(b, i, c * k, dtype=x.source.u.dtype, device=s.device)
    kernels.child_gradients[(b, triton.cdiv(i, lanes))](
        *x.source.by_children, *x.pointers(), s, s if g_z is None else g_z, x.sums.u, i, r,
        G=x.source.groups, SHARED=g_z is not None, SUM=sums, AGAIN=again, BLOCK=lanes, **x.options(), **x.source.where,
        num_warps=1,
    )  # fmt: skip


def parent_gradients(x: Step, s: Tensor, g_z: Tensor | None) -> tuple[Tensor, Tensor, Tensor] | None:
    """Gradients of the prior (B, J), mean and variance (B, D, J) it began with; of the one transform there may be."""
    b, i, j, r = x.source.sizes
    _, k, h = x.source.pose
    d, device, one = x.source.dim, s.device, x.source.one
    if not (x.fitted.density or one):
        return None
    registers = 56 + 7 * d + (5 * k * h // 2 if one else 0)
    bound = BOUND < registers <= 1.25 * BOUND
    walk = walk_tiles(x.source, 8) if x.source.tiled else walk_children(x.source, BOUND if bound else registers)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * d + 1, j, device=device) if x.fitted.density else s
    again = x.sums.weight is not None
    if one and x.sums.weight is None:
        x.sums.weight = torch.empty(grid[2] * b, j, k, h, device=device)
    given = (*x.pointers(), s, s if g_z is None else g_z, parts)
    if x.source.tiled:
        tiles.wide_parent_gradients[grid](
            x.source.by_parent, *given, b, i, r, walk.steps, SHARED=g_z is not None, **x.options()
        )
    else:
        kernels.parent_gradients[grid](
            *x.source.by_parents, *given, s if x.sums.weight is None else x.sums.weight, b, i, r, walk.steps,
            SHARED=g_z is not None, ONE=one, AGAIN=again, **walk.options, **x.options(), **x.source.where,
            **({"maxnreg": BOUND} if bound else {}),
        )  # fmt: skip
    if x.fitted.below is None:
        return None
    g_prior = torch.empty(b, j, device=device)
    g_mean, g_variance = torch.empty(b, d, j, device=device), torch.empty(b, d, j, device=device)
    ends.finish_parents[(triton.cdiv(b * d * j, 64),)](
        parts, x.fitted.below.variance, g_prior, g_mean, g_variance, parts if x.sums.shift is None else x.sums.shift,
        b * d * j, grid[2], J=j, D=d, SHIFT=x.sums.shift is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return g_prior, g_mean, g_variance


def weight_gradients(x: Step, s: Tensor, g_z: Tensor | None) -> None:
    """Gradient of W, and of the bias there may be; where every child has its own, of betas and first couplings."""
    b, i, j, r = x.source.sizes
    c, k, h = x.source.pose
    g, sums, device = i // r, x.sums, s.device
    own = 0 if x.source.own_by_parent is None else 2 * c * h
    again = sums.weight is not None
    chunks = x.source.chunks if sums.weight is None else sums.weight.shape[0]
    walk = walk_batch(x.source, 80 + 2 * c * h + 2 * k * h + own, GROUPS, chunks)
    grid = walk.grid(g, j, b * r)
    if sums.weight is None:
        sums.weight = torch.empty(grid[2], j, k, g, h, device=device)
        sums.own = None if x.source.own_by_parent is None else torch.empty(grid[2], j, c, g, h, device=device)
        if x.fitted.beta is not None and r == 1:
            sums.beta = torch.empty(grid[2], i, j, device=device)
    if x.fitted.first is not None and r == 1:
        sums.first = torch.empty(grid[2], i, j, device=device)
    out = [s if y is None else y for y in (sums.own, sums.beta, sums.first)]
    kernels.weight_gradients[grid](
        *x.source.by_parents, *x.pointers(), s, s if g_z is None else g_z, sums.weight, *out, b, i, r, walk.steps,
        SHARED=g_z is not None, PAIR=r == 1, AGAIN=again, **walk.options, **x.options(), **x.source.where,
    )  # fmt: skip


def pair_gradients(x: Step) -> None:
    """Gradients of beta and of the first coupling, (I, J) each, where `weight_gradients` does not sum them."""
    b, i, j, r = x.source.sizes
    f, sums = x.fitted, x.sums
    if f.beta is None and f.first is None:
        return
    again = sums.beta is not None
    if f.beta is not None and sums.beta is None:
        sums.beta = torch.empty(1, i, j, device=x.table.device)
    if f.first is not None:
        sums.first = torch.empty(1, i, j, device=x.table.device)
    given = (*x.pointers(), *(x.table if y is None else y for y in (sums.beta, sums.first)), b, i, r)
    if x.source.tiled:
        tiles.wide_pair_gradients[(i, x.source.blocks)](x.source.by_parent, *given, AGAIN=again, **x.options())
        return
    parents = min(triton.next_power_of_2(j), LANES)
    pairs.pair_gradients[(i, triton.cdiv(j, parents))](
        *x.source.by_parents, *given, PARENTS=parents, AGAIN=again, **x.options(), num_warps=1
    )


def summed(parts: Tensor) -> Tensor:
    """Over chunks; one is itself the sum."""
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)
