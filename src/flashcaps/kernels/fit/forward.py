r"""The forward pass on a GPU: fit the parents, describe them, normalise over them.

    a_ij = prior_j - 1/2 sum_d [(v - mu)^2 / sigma^2 + log sigma^2],   Z_i = log sum_j exp a_ij      E-step
    w_ij = gate_i exp(a_ij - Z_i),   n_j = sum_i w_ij,   weighted mean mu and spread about it        M-step
    logit_j = lambda [offset_j + n_j (slope_j - 1/2 sum_d log sigma^2)] + sum_i beta_ij w_ij,   prior = log sigmoid

The reference is `routing.math.log_density` and `weighted_moments`; em's logit is `routing.em.activation_logit`,
heinsen's its Eq. 8.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..common.replay import launch
from . import forward_kernels as kernels
from . import plan, wide
from .plan import Inputs, Options, Source
from .positions import share_gate


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
    gate, table, z = o.gate_of(x.gate), None, x.first_z
    for t, parents in enumerate(out.parents):
        benefit = moments(source, x, o, table, z, share_gate(gate, z, o.grid), parents)
        del table
        table = describe(source, x, o, parents, benefit, t)
        if table is not None:
            z = normaliser(source, table, out.normalisers[t])


def moments(
    source: Source, x: Inputs, o: Options, table: Tensor | None, z: Tensor | None, gate: Tensor, out: Parents
) -> Tensor | None:
    """Weight, mean and variance; sum_i beta w (B, J). table: of the parents before; None in the first iteration."""
    b, i, j, r = source.sizes
    d = source.dim
    first = x.first if table is None else None
    walk = plan.moments_walk(source)
    grid = walk.grid(b, j, i)
    parts = torch.empty(grid[2], b, 2 * d + 2, j, device=gate.device)
    given = (*(pointer(y, gate) for y in (table, first, z, gate, x.beta)), parts, b, i, r, walk.steps)
    known = {"DENSITY": table is not None, "FIRST": first is not None, "SCORE": x.beta is not None}
    if source.tiled:
        launch(wide.wide_moments, grid)(source.by_parent, *given, **source.options, **known)
    else:
        launch(kernels.chunk_moments, grid)(
            *source.by_parents, *given, **walk.options, **source.options, AT=source.at, **known, ONE=source.one
        )
    score = torch.empty(b, j, device=gate.device)
    launch(kernels.finish_moments, (triton.cdiv(b * d * j, 64),))(
        parts, pointer(source.shift, parts), out.weight, score, out.mean, out.variance, o.eps, b * d * j, grid[2], J=j,
        D=d, SHIFT=source.shift is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return None if x.beta is None else score


def describe(source: Source, x: Inputs, o: Options, out: Parents, benefit: Tensor | None, t: int) -> Tensor | None:
    """Logits of iteration t; and unless it is the last, the forward table (B, (4 + 2 D) / RUN, J, RUN)."""
    b, d, j = out.mean.shape
    run, none, last = source.run, out.logit, t == len(o.scales) - 1
    table = None if last else torch.empty(b, (kernels.HEAD.value + 2 * d) // run, j, run, device=none.device)
    launch(kernels.describe, (triton.cdiv(b * j, 64),))(
        out.weight, pointer(benefit, none), out.mean, out.variance, pointer(x.offset, none), pointer(x.slope, none),
        pointer(source.shift, none), out.logit, pointer(table, none), o.scales[t], o.tau(t), b * j, J=j, D=d, RUN=run,
        **logit_options(x, o), BENEFIT=benefit is not None, SHIFT=source.shift is not None, TABLE=not last, BLOCK=64,
        num_warps=2,
    )  # fmt: skip
    return table


def logit_options(x: Inputs, o: Options) -> dict[str, bool]:
    """Which terms a logit has."""
    return {"OFFSET": x.offset is not None, "SLOPE": x.slope is not None, "SPREAD": o.spread}


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
