r"""The forward pass on a GPU: fit the parents, describe them, normalise over them.

    a_ij = prior_j - 1/2 sum_d [(v - mu)^2 / sigma^2 + log sigma^2],   Z_i = log sum_j exp a_ij      E-step
    w_ij = gate_i exp(a_ij - Z_i),   n_j = sum_i w_ij,   weighted mean mu and spread about it        M-step
    logit_j = lambda [offset_j + n_j (slope_j - 1/2 sum_d log sigma^2)] + sum_i beta_ij w_ij,   prior = log sigmoid

The reference is `routing.math.log_density` and `weighted_moments`; em's logit is `routing.em.activation_logit`,
heinsen's its Eq. 8.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..common.replay import launch
from . import forward_kernels as kernels
from . import plan, wide
from .plan import Inputs, Options, Source
from .positions import share_gate

COUNTER = 4  # numbers for each: 16 bytes, so that those of all iterations are aligned and kernels compile once


class Parents(NamedTuple):
    """What an iteration found."""

    mean: Tensor  # (B, D, J)
    variance: Tensor  # (B, D, J)
    logit: Tensor  # (B, J)
    weight: Tensor  # (B, J), n


class Outputs(NamedTuple):
    """The parents after each of T iterations, and each E-step's Z, (T - 1, B, I)."""

    parents: list[Parents]
    normalisers: Tensor

    def rows(self, rows: slice) -> Outputs:
        return Outputs([Parents(*(y[rows] for y in x)) for x in self.parents], self.normalisers[:, rows])


def route(source: Source, x: Inputs, o: Options, out: Outputs) -> None:
    """All iterations; each writes its parents, and each but the last the next E-step's Z, to `out`."""
    (b, _, j, _), d, run, last = source.sizes, source.dim, source.run, len(o.scales) - 1
    gate, z = o.gate_of(x.gate), x.first_z
    table = torch.empty(b, (kernels.HEAD.value + 2 * d) // run, j, run, device=gate.device) if last else gate
    counters = torch.zeros(last + 1, COUNTER, dtype=torch.int32, device=gate.device)
    for t, (parents, counter) in enumerate(zip(out.parents, counters, strict=True)):
        moments(source, x, o, t, table, z, share_gate(gate, z, o.grid), counter, parents)
        if t < last:
            z = normaliser(source, table, out.normalisers[t])


def moments(
    source: Source, x: Inputs, o: Options, t: int, table: Tensor, z: Tensor | None, gate: Tensor, counter: Tensor,
    out: Parents,
) -> None:  # fmt: skip
    """Parents of iteration t, from the table (B, (4 + 2 D) / RUN, J, RUN) of those before, which theirs replaces."""
    (b, i, j, r), first = source.sizes, None if t else x.first
    walk = plan.moments_walk(source)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * source.dim + 2, j, device=gate.device)
    programs, ends = plan.finish(source, grid[2], walk.warps)
    given = (
        *(pointer(y, gate) for y in (table, first, z, gate, x.beta)), parts, counter, b, i, r, walk.steps,
        *(pointer(y, gate) for y in (x.offset, x.slope, source.shift)), out.weight, out.logit, out.mean, out.variance,
        o.scales[t], *x.factors, o.tau(t), o.eps, int(t < len(o.scales) - 1),
    )  # fmt: skip
    known = {
        "DENSITY": t > 0, "FIRST": first is not None, "SCORE": x.beta is not None, **logit_options(x, o),
        "SHIFT": source.shift is not None, **ends, **source.options,
    }  # fmt: skip
    if source.tiled:
        launch(wide.wide_moments, (math.prod(grid) + programs,))(source.by_parent, *given, **known)
    else:
        launch(kernels.moments, (math.prod(grid) + programs,))(
            *source.by_parents, *given, **known, **walk.options, ONE=source.one, AT=source.at
        )


def logit_options(x: Inputs, o: Options) -> dict[str, int]:
    """Which terms a logit has; of the offset, its number of axes."""
    return {"OFFSET": 0 if x.offset is None else x.offset.ndim, "SLOPE": x.slope is not None, "SPREAD": o.spread}


def normaliser(source: Source, table: Tensor, out: Tensor) -> Tensor:
    """Z_i = log sum_j exp a_ij, (B, I)."""
    b, i, _, r = source.sizes
    if source.tiled:
        launch(wide.wide_normaliser, (b * i,))(source.by_parent, table, out, b, i, r, **source.options)
        return out
    lanes = plan.child_lanes(source)
    launch(kernels.normaliser, (b, triton.cdiv(i, lanes)))(
        *source.by_children, table, out, i, r, G=source.groups, BLOCK=lanes, **source.options, AT=source.at,
        num_warps=1,
    )  # fmt: skip
    return out


def pointer(x: Tensor | None, other: Tensor) -> Tensor:
    """x, or `other` as a placeholder that the kernel does not read."""
    return other if x is None else x
