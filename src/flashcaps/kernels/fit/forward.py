r"""The forward pass on a GPU: fit the parents, describe them, normalise over them.

    a_ij = prior_j - 1/2 sum_d [(v - mu)^2 / sigma^2 + log sigma^2],   Z_i = log sum_j exp a_ij      E-step
    w_ij = gate_i exp(a_ij - Z_i),   n_j = sum_i w_ij,   weighted mean mu and spread about it        M-step
    logit_j = lambda [offset_j + n_j (slope_j - 1/2 sum_d log sigma^2)] + sum_i beta_ij w_ij,   prior = log sigmoid

The reference is `routing.math.log_density` and `weighted_moments`; em's logit is `routing.em.activation_logit`,
heinsen's its Eq. 8. Kernels of wide poses are in `wide`.

`_normaliser` has a child per lane and walks over parents, `_moments` a parent per lane and walks over children: each
reduces along its walk, and reads poses and transforms once. Walks are shared out and cut as `plan` says. The mean and
the spread follow Welford's update, and parts merge by Chan's rule, so that no square of a large number is subtracted.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.replay import launch
from . import plan, wide
from .components import (
    AHEAD,
    HEAD,
    LOWEST,
    child_deviations,
    load,
    load_chunks,
    load_pose,
    load_table,
    log_sigmoid,
    mahalanobis,
    merged,
    pair_at,
    parent_deviations,
    repeat,
    step_at,
    store,
    walk_lanes,
)
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


@triton.jit
def _describe(
    weight, benefit, mean, variance, offset, slope, shift, logit, table, scale, tau, count, J: tl.constexpr,
    D: tl.constexpr, RUN: tl.constexpr, OFFSET: tl.constexpr, SLOPE: tl.constexpr, SPREAD: tl.constexpr,
    BENEFIT: tl.constexpr, SHIFT: tl.constexpr, TABLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logits of the parents; TABLE: and what the next E-step reads of them."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = x < count
    b, j = (x // J).to(tl.int64), x % J
    out = table + b * ((HEAD + 2 * D) * J) + j * RUN
    spread = tl.full((BLOCK,), 0.0, tl.float32)
    for d in tl.static_range(D):
        at = (b * D + d) * J + j
        var = tl.load(variance + at, mask=live, other=1.0)
        spread += 0.5 * tl.log(var)
        if TABLE:
            p = out + (HEAD + d // RUN * RUN) * J + d % RUN
            centre = tl.load(mean + at, mask=live, other=0.0)
            if SHIFT:
                centre -= tl.load(shift + d * J + j, mask=live, other=0.0)
            tl.store(p, centre, mask=live)
            tl.store(p + D * J, tau / var, mask=live)
    each = tl.full((BLOCK,), 0.0, tl.float32)  # what a unit of weight adds
    if SLOPE:
        each += tl.load(slope + j, mask=live, other=0.0)
    if SPREAD:
        each -= spread
    a = tl.load(weight + x, mask=live, other=0.0) * each
    if OFFSET:
        a += tl.load(offset + x, mask=live, other=0.0)
    a = scale * a
    if BENEFIT:
        a += tl.load(benefit + x, mask=live, other=0.0)
    tl.store(logit + x, a, mask=live)
    if TABLE:
        tl.store(out, log_sigmoid(a) - tau * spread, mask=live)


@triton.jit
def _normaliser(
    u, w, own, table, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """Z_i of the E-step, one child per lane."""
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    pose = ()
    if K > 0:
        pose = load_pose(u, b, i, I, live, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX)
    top = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    rows = table + b * ((HEAD + 2 * D) * J) + tl.arange(0, 1)
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        row = rows + j * RUN
        f, _ = child_deviations(pose, w, own, row, b, i, j, I, R, live, G, J, C, K, H, RUN, OWN)
        precision = load_table(row, HEAD + D, None, D, J, RUN)
        a = tl.load(row) - 0.5 * mahalanobis(f, precision, D)
        higher = tl.maximum(top, a)
        total = total * tl.exp(top - higher) + tl.exp(a - higher)
        top = higher
    tl.store(out + b * I + i, top + tl.log(total), mask=live)


@triton.jit
def scales(mean, precision, D: tl.constexpr):
    """1 / sigma, mu / sigma"""
    x, y = (), ()
    for d in tl.static_range(D):
        root = tl.sqrt(precision[d])
        x = x + (root,)
        y = y + (mean[d] * root,)
    return x, y


@triton.jit
def distance(v, root, centre, D: tl.constexpr):
    """The Mahalanobis distance of a vote from 1 / sigma and mu / sigma: sum_d (v_d / sigma_d - mu_d / sigma_d)^2"""
    x = 0.0
    for d in tl.static_range(D):
        y = v[d] * root[d] - centre[d]
        x += y * y
    return x


@triton.jit
def _moments(
    u, w, own, table, first, normaliser, gate, beta, out, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, ONE: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """Weight, score, mean and spread of a chunk of children: the M-step of one parent per lane."""
    D: tl.constexpr = C * H
    x, b, j, zero = walk_lanes(ROWS, SPLIT, PARENTS)
    b = b.to(tl.int64)
    there = j < J
    row = table + b * ((HEAD + 2 * D) * J) + j * RUN
    if DENSITY:
        live = (b < B) & there
        constant = tl.load(row, mask=live, other=0.0)
        root, centre = scales(load_table(row, HEAD, live, D, J, RUN), load_table(row, HEAD + D, live, D, J, RUN), D)
    n, score, mean, spread = zero, zero, repeat(zero, D), repeat(zero, D)
    none, transform = repeat(0.0, D), ()
    if ONE:
        transform = load(w + j * H, J * H, there, K * H, H)
    lo = tl.program_id(2) * steps * SPLIT
    for t in tl.range(tl.minimum(steps, tl.cdiv(I - lo, SPLIT)), loop_unroll_factor=4 if D <= 4 else 1):
        i = step_at(lo, t, x, ROWS, SPLIT)
        here, known = (b < B) & (i < I), there & (i < I)
        live = here & there
        v, _ = parent_deviations(
            u, w, own, transform, none, b, i, j, I, R, here, known, live, J, C, K, H, OWN, ONE,
            OH, OW, SB, PY, PX, KERNEL, ST, SY, SX,
        )  # fmt: skip
        use = tl.load(gate + b * I + i, mask=here, other=0.0)
        if DENSITY:
            a = constant - 0.5 * distance(v, root, centre, D)
            z = tl.load(normaliser + b * I + i, mask=here, other=0.0)
            use = use * tl.exp(tl.where(live, a - z, LOWEST))
        elif FIRST:
            use = use * tl.load(first + pair_at(i, j, J), mask=known, other=0.0)
        else:
            use = use * (1.0 / J) + zero
        if SCORE:
            score += use * tl.load(beta + pair_at(i, j, J), mask=known, other=0.0)
        total = n + use
        step = use / tl.where(total > 0, total, 1.0)
        keep = n * step
        m, s = (), ()
        for d in tl.static_range(D):
            delta = v[d] - mean[d]
            m = m + (mean[d] + step * delta,)
            s = s + (spread[d] + keep * delta * delta,)
        n, mean, spread = total, m, s
    if SPLIT > 1:  # Chan's rule merges what the parts of a row found
        total = tl.expand_dims(merged((n,), 1, ROWS, SPLIT)[0], 1)
        share = tl.reshape(n, (ROWS, SPLIT, PARENTS)) / tl.where(total > 0, total, 1.0)
        m, s = (), ()
        for d in tl.static_range(D):
            own_mean = tl.reshape(mean[d], (ROWS, SPLIT, PARENTS))
            centre_d = tl.sum(share * own_mean, 1)
            off = own_mean - tl.expand_dims(centre_d, 1)
            m = m + (centre_d,)
            s = s + (tl.sum(tl.reshape(spread[d], (ROWS, SPLIT, PARENTS)) + total * share * off * off, 1),)
        n, score = merged((n, score), 2, ROWS, SPLIT)
        mean, spread = m, s
    b = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    live = (b < B) & there
    p = out + ((tl.program_id(2) * B + b) * (2 * D + 2)) * J + j
    tl.store(p, n, mask=live)
    tl.store(p + J, score, mask=live)
    store(p + 2 * J, J, live, mean, D)
    store(p + (2 + D) * J, J, live, spread, D)


@triton.jit
def _finish(
    parts, shift, weight, score, mean, variance, eps, count, chunks,
    J: tl.constexpr, D: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Moments of all children from those of chunks, by Chan's rule; eps as in `routing.math.weighted_moments`."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (b, d, j)
    live = x < count
    b, d, j = x // (D * J), x // J % D, x % J
    stride = (count // D) * (2 * D + 2)
    p = parts + b * ((2 * D + 2) * J) + j
    n = tl.full((BLOCK,), 0.0, tl.float32)
    benefit, total, spread, moved = n, n, n, n
    if SHIFT:
        moved = tl.load(shift + d * J + j, mask=live, other=0.0)
    for k in range(0, chunks, AHEAD):
        own = load_chunks(p, stride, k, chunks, live, AHEAD)
        more = load_chunks(p + J, stride, k, chunks, live, AHEAD)
        m = load_chunks(p + (2 + d) * J, stride, k, chunks, live, AHEAD)
        for c in tl.static_range(AHEAD):
            n += own[c]
            benefit += more[c]
            total += own[c] * m[c]
    divisor = tl.where(live, n + eps, 1.0)
    centre = (total + n * moved) / divisor
    within = centre - moved  # of votes without their bias, as chunks have them
    for k in range(0, chunks, AHEAD):
        own = load_chunks(p, stride, k, chunks, live, AHEAD)
        m = load_chunks(p + (2 + d) * J, stride, k, chunks, live, AHEAD)
        m2 = load_chunks(p + (2 + D + d) * J, stride, k, chunks, live, AHEAD)
        for c in tl.static_range(AHEAD):
            spread += m2[c] + own[c] * (m[c] - within) * (m[c] - within)
    tl.store(weight + b * J + j, n, mask=live & (d == 0))
    tl.store(score + b * J + j, benefit, mask=live & (d == 0))
    tl.store(mean + x, centre, mask=live)
    tl.store(variance + x, spread / divisor + eps, mask=live)


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
        launch(_moments, grid)(
            *source.by_parents, *given, **walk.options, **source.options, **source.where, **known, ONE=source.one
        )
    score = torch.empty(b, j, device=gate.device)
    launch(_finish, (triton.cdiv(b * d * j, 64),))(
        parts, pointer(source.shift, parts), out.weight, score, out.mean, out.variance, o.eps, b * d * j, grid[2], J=j,
        D=d, SHIFT=source.shift is not None, BLOCK=64, num_warps=2,
    )  # fmt: skip
    return None if x.beta is None else score


def describe(source: Source, x: Inputs, o: Options, out: Parents, benefit: Tensor | None, t: int) -> Tensor | None:
    """Logits of iteration t; and unless it is the last, the forward table (B, (4 + 2 D) / RUN, J, RUN)."""
    b, d, j = out.mean.shape
    run, none, last = source.run, out.logit, t == len(o.scales) - 1
    table = None if last else torch.empty(b, (HEAD.value + 2 * d) // run, j, run, device=none.device)
    launch(_describe, (triton.cdiv(b * j, 64),))(
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
    launch(_normaliser, (b, triton.cdiv(i, lanes)))(
        *source.by_children, table, out, i, r, G=source.groups, BLOCK=lanes, **source.options, **source.where,
        num_warps=1,
    )  # fmt: skip
    return out


def pointer(x: Tensor | None, other: Tensor) -> Tensor:
    """x, or `other` as a placeholder that the kernel does not read."""
    return other if x is None else x
