r"""Kernels for the stored votes of wide poses: a pose lies across lanes, as a row of a tile.

The kernels of `forward` and `backward_kernels` hold a pose, and what is summed of it, in the registers of one lane. At
64 elements there are too few registers, and unrolled code takes minutes to compile. Here a tile is PARENTS x WIDTH, a
vote is read where the matrix product left it, (G, B, R, C, J, H), and what belongs to an element is summed by walking
over children, what belongs to a vote across lanes. Equations, tables and parts are those of the other kernels, of which
each kernel here has the name.

Bytes: each kernel reads the votes once. At T iterations that is 2 T - 1 times forward, twice for each E-step on the way
back, T times more where betas are learned, and once in the end, when their gradient is written in their place. Votes of
the few examples of a part are meant to stay in the second-level cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.order_triton import arrive, wait_for
from .backward_kernels import slopes
from .forward_kernels import HEAD, LOWEST, accumulate, finish_moments, rows_at, walk_of


@triton.jit
def tile_at(lo, J: tl.constexpr, D: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr):
    """Parents from `lo` on, as a row and down a tile, elements across it, and which parents and elements there are."""
    parent = lo + tl.arange(0, PARENTS)
    j, d = parent[:, None], tl.arange(0, WIDTH)[None, :]
    return parent, j, d, parent < J, (j < J) & (d < D)


@triton.jit
def child_of(program, I):
    """Example and child of a program that has one child."""
    return (program // I).to(tl.int64), (program % I).to(tl.int64)


@triton.jit
def votes_at(b, i, j, d, B, R, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr):
    """Where the votes of child i of example b for parents j are."""
    return ((i // R * B + b) * R + i % R) * (C * J * H) + d // H * (J * H) + j * H + d % H


@triton.jit
def rows_of(table, row, j, d, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr):
    """D of them: (PARENTS, WIDTH), 0 where there is none."""
    return tl.load(table + rows_at(row, j, d, J, RUN), mask=(j < J) & (d < D), other=0.0)


@triton.jit
def constants_of(table, parent, J: tl.constexpr, RUN: tl.constexpr):
    """Log of prior and scale, LOWEST where there is no parent: its coupling is 0."""
    return tl.load(table + parent * RUN, mask=parent < J, other=LOWEST)


@triton.jit
def slopes_of(table, parent, J: tl.constexpr, RUN: tl.constexpr):
    """K"""
    return tl.load(table + parent * RUN + (1 if RUN > 1 else J), mask=parent < J, other=0.0)


@triton.jit
def deviations_of(v, row, b, i, j, d, live, B, R, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr):
    """f = v - mu, of a table's parents j: (PARENTS, WIDTH)"""
    f = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0)
    return f - rows_of(row, HEAD, j, d, J, C * H, RUN)


@triton.jit
def couplings(f, precision, constant, z):
    """p_ij = exp(a_ij - Z_i), of deviations f (PARENTS, WIDTH)"""
    return tl.exp(constant - 0.5 * tl.sum(f * f * precision, 1) - z)


@triton.jit
def first_couplings(first, i, parent, J: tl.constexpr, FIRST: tl.constexpr):
    """p_ij without a density: given, FIRST, or uniform."""
    if FIRST:
        p = tl.load(first + i * J + parent, mask=parent < J, other=0.0)
    else:
        p = tl.where(parent < J, 1.0 / J, 0.0)
    return p


@triton.jit
def scores_of(g_score, row, parent, J: tl.constexpr, SCORE: tl.constexpr):
    """dL / dlogit_j, where there are betas; else nothing reads it."""
    g = 0.0
    if SCORE:
        g = tl.load(g_score + row * J + parent, mask=parent < J, other=0.0)
    return g


@triton.jit
def benefits(f, a, q, constant, score, beta, i, parent, J: tl.constexpr, SCORE: tl.constexpr):
    """dL / dw_ij = K + sum_d f (A + Q f) + beta_ij dL / dlogit_j"""
    gw = constant + tl.sum(f * (a + q * f), 1)
    if SCORE:
        gw += score * tl.load(beta + i * J + parent, mask=parent < J, other=0.0)
    return gw


@triton.jit
def wide_normaliser(
    v, table, out, B, I, R, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr,
    PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Z_i of one child."""
    D: tl.constexpr = C * H
    b, i = child_of(tl.program_id(0), I)
    row = table + b * ((HEAD + 2 * D) * J)
    top = tl.full((1,), LOWEST, tl.float32)
    total = tl.full((1,), 0.0, tl.float32)
    for lo in range(0, J, PARENTS):
        parent, j, d, _, live = tile_at(lo, J, D, PARENTS, WIDTH)
        f = deviations_of(v, row, b, i, j, d, live, B, R, J, C, H, RUN)
        precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
        a = constants_of(row, parent, J, RUN) - 0.5 * tl.sum(f * f * precision, 1)
        higher = tl.maximum(top, tl.max(a, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(a - higher), 0)
        top = higher
    tl.store(out + b * I + i + tl.arange(0, 1), top + tl.log(total))


@triton.jit
def chunk_moments(
    program, v, table, first, normaliser, gate, beta, out, B, I, R, steps, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Weight, score, mean and spread over a chunk of children, by Welford's update."""
    D: tl.constexpr = C * H
    b, of_parent, chunk = walk_of(program, B, J, 1, PARENTS)
    b = b.to(tl.int64)
    parent, j, d, there, live = tile_at(of_parent * PARENTS, J, D, PARENTS, WIDTH)
    row = table + b * ((HEAD + 2 * D) * J)
    if DENSITY:
        constant = constants_of(row, parent, J, RUN)
        centre = rows_of(row, HEAD, j, d, J, D, RUN)
        precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
    n = tl.full((PARENTS,), 0.0, tl.float32)
    score = n
    mean = tl.full((PARENTS, WIDTH), 0.0, tl.float32)
    spread = mean
    begin = chunk * steps
    for i in range(begin, tl.minimum(begin + steps, I)):
        vote = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0)
        use = tl.load(gate + b * I + i)
        if DENSITY:
            f = vote - centre
            use = use * couplings(f, precision, constant, tl.load(normaliser + b * I + i))
        else:
            use = use * first_couplings(first, i, parent, J, FIRST)
        if SCORE:
            score += use * tl.load(beta + i * J + parent, mask=there, other=0.0)
        total = n + use
        step = use / tl.where(total > 0, total, 1.0)
        delta = vote - mean
        mean += step[:, None] * delta
        spread += (n * step)[:, None] * delta * delta
        n = total
    p = out + (chunk * B + b) * ((2 * D + 2) * J)
    tl.store(p + parent, n, mask=there)
    tl.store(p + J + parent, score, mask=there)
    tl.store(p + (2 + d) * J + j, mean, mask=live)
    tl.store(p + (2 + D + d) * J + j, spread, mask=live)


@triton.jit(do_not_specialize=["more"])
def wide_moments(
    v, table, first, normaliser, gate, beta, parts, counter, B, I, R, steps, offset, slope, shift, weight, logit, mean,
    variance, scale, offset_factor, slope_factor, tau, eps, more, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, OFFSET: tl.constexpr,
    SLOPE: tl.constexpr, SPREAD: tl.constexpr, SHIFT: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """An M-step: programs that walk over chunks of children, then those that finish, in the place of the table read."""
    chunks = tl.cdiv(I, steps)
    walks = B * tl.cdiv(J, PARENTS) * chunks
    p = tl.program_id(0)
    if p < walks:
        chunk_moments(
            p, v, table, first, normaliser, gate, beta, parts, B, I, R, steps, J, C, H, RUN, DENSITY, FIRST, SCORE,
            PARENTS, WIDTH,
        )  # fmt: skip
        arrive(counter)
    else:
        wait_for(counter, walks)
        finish_moments(
            p - walks, tl.num_programs(0) - walks, parts, chunks, offset, slope, shift, weight, logit, mean, variance,
            table, scale, offset_factor, slope_factor, tau, eps, more, B * J, J, C * H, RUN, SCORE, OFFSET, SLOPE,
            SPREAD, SHIFT, WIDTH, TILE, AHEAD,
        )  # fmt: skip


@triton.jit
def wide_child_sums(
    v, table, first, normaliser, gate, beta, g_score, out, B, I, R, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """s_i = sum_j p_ij dL/dw_ij of one child."""
    D: tl.constexpr = C * H
    b, i = child_of(tl.program_id(0), I)
    row = table + b * ((HEAD + 4 * D) * J)
    s = tl.full((1,), 0.0, tl.float32)
    norm = s
    for lo in range(0, J, PARENTS):
        parent, j, d, _, live = tile_at(lo, J, D, PARENTS, WIDTH)
        f = deviations_of(v, row, b, i, j, d, live, B, R, J, C, H, RUN)
        a, q = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN), rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
        score = scores_of(g_score, b, parent, J, SCORE)
        gw = benefits(f, a, q, slopes_of(row, parent, J, RUN), score, beta, i, parent, J, SCORE)
        if DENSITY:
            precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
            p = couplings(f, precision, constants_of(row, parent, J, RUN), tl.load(normaliser + b * I + i))
        else:
            p = first_couplings(first, i, parent, J, FIRST)
        s += tl.sum(p * gw, 0)
        norm += tl.sum(p, 0)
    if DENSITY:
        s /= norm
    tl.store(out + b * I + i + tl.arange(0, 1), s)


@triton.jit
def chunk_gradients(
    program, v, table, normaliser, gate, beta, g_score, s, g_z, parts, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr,
    PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums of dL/da, times f and times f^2, over a chunk of children: only of iterations that begin with parents."""
    D: tl.constexpr = C * H
    b, of_parent, chunk = walk_of(program, B, J, 1, PARENTS)
    b = b.to(tl.int64)
    parent, j, d, there, live = tile_at(of_parent * PARENTS, J, D, PARENTS, WIDTH)
    row = table + b * ((HEAD + 4 * D) * J)
    constant, k = constants_of(row, parent, J, RUN), slopes_of(row, parent, J, RUN)
    centre, precision = rows_of(row, HEAD, j, d, J, D, RUN), rows_of(row, HEAD + D, j, d, J, D, RUN)
    a, q = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN), rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
    score = scores_of(g_score, b, parent, J, SCORE)
    n = tl.full((PARENTS,), 0.0, tl.float32)
    once = tl.full((PARENTS, WIDTH), 0.0, tl.float32)
    twice = once
    begin = chunk * steps
    for i in range(begin, tl.minimum(begin + steps, I)):
        f = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0) - centre
        gw = benefits(f, a, q, k, score, beta, i, parent, J, SCORE)
        ga = tl.load(gate + b * I + i) * (gw - tl.load(s + b * I + i))
        if SHARED:
            ga += tl.load(g_z + b * I + i)
        ga = ga * couplings(f, precision, constant, tl.load(normaliser + b * I + i))
        n += ga
        y = ga[:, None] * f
        once += y
        twice += y * f
    p = parts + (chunk * B + b) * ((2 * D + 1) * J)
    tl.store(p + parent, n, mask=there)
    tl.store(p + (1 + d) * J + j, once, mask=live)
    tl.store(p + (1 + D + d) * J + j, twice, mask=live)


@triton.jit
def wide_parent_gradients(
    v, table, first, normaliser, gate, beta, g_score, s, g_z, parts, counter, B, I, R, steps, logit, weight, mean,
    variance, below, centre, around, slope, shift, g_logit, g_mean, g_variance, next_score, g_offset, g_slope, g_shift,
    next_table, scale, offset_factor, slope_factor, eps, tau, tau_above, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    SHARED: tl.constexpr, OFFSET: tl.constexpr, SLOPE: tl.constexpr, SPREAD: tl.constexpr, SHIFT: tl.constexpr,
    GIVEN: tl.constexpr, MEAN: tl.constexpr, VARIANCE: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Programs that walk over chunks of children, then those that finish by the `slopes` of the parents below."""
    chunks = tl.cdiv(I, steps)
    walks = B * tl.cdiv(J, PARENTS) * chunks
    p = tl.program_id(0)
    if p < walks:
        chunk_gradients(
            p, v, table, normaliser, gate, beta, g_score, s, g_z, parts, B, I, R, steps, J, C, H, RUN, SCORE, SHARED,
            PARENTS, WIDTH,
        )  # fmt: skip
        arrive(counter)
    else:
        wait_for(counter, walks)
        slopes(
            p - walks, tl.num_programs(0) - walks, parts, chunks, logit, weight, mean, variance, below, centre, around,
            slope, shift, g_logit, g_mean, g_variance, next_score, g_offset, g_slope, g_shift, next_table, scale,
            offset_factor, slope_factor, eps, tau, tau_above, B * J, J, C * H, RUN, True, OFFSET, SLOPE, SPREAD, SHIFT,
            GIVEN, MEAN, VARIANCE, WIDTH, TILE, AHEAD,
        )  # fmt: skip


@triton.jit
def wide_pair_gradients(
    v, table, first, normaliser, gate, beta, g_score, g_beta, g_first, B, I, R, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    AGAIN: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Of what belongs to a child and a parent, beta and the first coupling, over the batch."""
    D: tl.constexpr = C * H
    i = tl.program_id(0).to(tl.int64)
    parent, j, d, there, live = tile_at(tl.program_id(1) * PARENTS, J, D, PARENTS, WIDTH)
    of_beta = tl.full((PARENTS,), 0.0, tl.float32)
    of_first = of_beta
    for b in range(B):
        row = table + b * ((HEAD + 4 * D) * J)
        f = deviations_of(v, row, b, i, j, d, live, B, R, J, C, H, RUN)
        g, score = tl.load(gate + b * I + i), scores_of(g_score, b, parent, J, SCORE)
        if SCORE:
            if DENSITY:
                precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
                z = tl.load(normaliser + b * I + i)
                p = couplings(f, precision, constants_of(row, parent, J, RUN), z)
            else:
                p = first_couplings(first, i, parent, J, FIRST)
            of_beta += g * p * score
        if FIRST:
            a, q = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN), rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
            of_first += g * benefits(f, a, q, slopes_of(row, parent, J, RUN), score, beta, i, parent, J, SCORE)
    if SCORE:
        accumulate(g_beta + i * J + parent, 0, there, (of_beta,), 1, 1, AGAIN)
    if FIRST:
        tl.store(g_first + i * J + parent, of_first, mask=there)


@triton.jit
def wide_vote_gradients(
    v, table, first, normaliser, gate, beta, g_score, s, g_z, B, I, R, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, T: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    SHARED: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of a child's votes, of all T iterations at once, in the place of the votes.

    Of each iteration: table, g_score (B, J), s and, SHARED, gate (B, I); of each but the first: normaliser, g_z (B, I).
    """
    D: tl.constexpr = C * H
    b, i = child_of(tl.program_id(0), I)
    parent, j, d, _, live = tile_at(tl.program_id(1) * PARENTS, J, D, PARENTS, WIDTH)
    at = b * I + i
    place = v + votes_at(b, i, j, d, B, R, J, C, H)
    vote = tl.load(place, mask=live, other=0.0)
    total = tl.full((PARENTS, WIDTH), 0.0, tl.float32)
    for t in tl.static_range(T):
        row = table + (t * B + b) * ((HEAD + 4 * D) * J)
        f = vote - rows_of(row, HEAD, j, d, J, D, RUN)
        a, q = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN), rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
        g = tl.load(gate + (t * B * I if SHARED else 0) + at)
        if t > 0:
            precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
            p = couplings(f, precision, constants_of(row, parent, J, RUN), tl.load(normaliser + (t - 1) * B * I + at))
            score = scores_of(g_score, t * B + b, parent, J, SCORE)
            gw = benefits(f, a, q, slopes_of(row, parent, J, RUN), score, beta, i, parent, J, SCORE)
            ga = g * (gw - tl.load(s + t * B * I + at))
            if SHARED:
                ga += tl.load(g_z + (t - 1) * B * I + at)
            total -= (p * ga)[:, None] * f * precision
        else:
            p = first_couplings(first, i, parent, J, FIRST)
        total += (g * p)[:, None] * (a + 2 * q * f)
    tl.store(place, total, mask=live)
