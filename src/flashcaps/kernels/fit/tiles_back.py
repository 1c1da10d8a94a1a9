r"""Backward kernels of `_fit_triton` for stored votes of wide poses: those of `_fit_backward`, `_fit_slopes` and
`_fit_pairs`, with the tiles of `_fit_tiles`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import log_sigmoid
from .lanes import HEAD, gather
from .tiles import constants_of, couplings, rows_at, rows_of, tile_at, votes_at


@triton.jit
def slopes_of(table, parent, J: tl.constexpr, RUN: tl.constexpr):
    """K"""
    return tl.load(table + parent * RUN + (1 if RUN > 1 else J), mask=parent < J, other=0.0)


@triton.jit
def benefits(f, a, q, constant):
    """dL / dw_ij = K + sum_d f (A + Q f)"""
    return constant + tl.sum(f * (a + q * f), 1)


@triton.jit
def wide_slopes(
    logit, weight, mean, variance, below, centre, around, slope, shift, g_logit, g_prior, g_mean, g_variance,
    g_score, g_offset, g_slope, g_shift, table, scale, eps, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    RUN: tl.constexpr, DENSITY: tl.constexpr, OFFSET: tl.constexpr, SLOPE: tl.constexpr, SPREAD: tl.constexpr,
    SHIFT: tl.constexpr, GIVEN: tl.constexpr, PRIOR: tl.constexpr, MEAN: tl.constexpr, VARIANCE: tl.constexpr,
    AGAIN: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The table of parents fitted about others, as `_fit_slopes.slopes` has it."""
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    parent, j, d, there, live = tile_at(tl.program_id(1) * PARENTS, J, D, PARENTS, WIDTH)
    x, at = b * J + parent, (b * D + d) * J + j
    n = tl.load(weight + x, mask=there, other=0.0)
    g = tl.full((PARENTS,), 0.0, tl.float32)
    k = g
    if GIVEN:
        g += tl.load(g_logit + x, mask=there, other=0.0)
    if PRIOR:
        g += tl.load(g_prior + x, mask=there, other=0.0) * tl.sigmoid(-tl.load(logit + x, mask=there, other=0.0))
    tl.store(g_score + x, g, mask=there)
    if OFFSET:
        gather(g_offset + x, 0, there, (scale * g,), 1, 1, AGAIN)
    if SLOPE:
        k += scale * g * tl.load(slope + parent, mask=there, other=0.0)
        gather(g_slope + x, 0, there, (scale * g * n,), 1, 1, AGAIN)
    m, own = tl.load(mean + at, mask=live, other=0.0), tl.load(variance + at, mask=live, other=1.0)
    a = tl.full((PARENTS, WIDTH), 0.0, tl.float32)
    q, divisor = a, tl.where(there, n + eps, 1.0)[:, None]
    if VARIANCE:
        q += tl.load(g_variance + at, mask=live, other=0.0)
    if SPREAD:
        k -= 0.5 * scale * g * tl.sum(tl.log(own), 1)
        q -= tl.where(live, (0.5 * scale * g * n)[:, None] / own, 0.0)
    q = q / divisor
    if MEAN:
        a = tl.load(g_mean + at, mask=live, other=0.0) / divisor
    a -= 2 * eps * m * q / divisor
    k -= tl.sum(q * (own - eps), 1)
    if SHIFT:
        gather(g_shift + at, 0, live, (n[:, None] * a + 2 * q * eps * m,), 1, 1, AGAIN)
    row = table + b * ((HEAD + 4 * D) * J)
    if DENSITY:
        mu, var = tl.load(centre + at, mask=live, other=0.0), tl.load(around + at, mask=live, other=1.0)
        constant = log_sigmoid(tl.load(below + x, mask=there, other=0.0)) - 0.5 * tl.sum(tl.log(var), 1)
        tl.store(row + parent * RUN, constant, mask=there)
        tl.store(row + rows_at(HEAD + D, j, d, J, RUN), 1 / var, mask=live)
        off = mu - m
        k += tl.sum(off * (a + q * off), 1)
        a += 2 * q * off
        m = mu
    if SHIFT:
        m -= tl.load(shift + d * J + j, mask=live, other=0.0)
    tl.store(row + rows_at(HEAD, j, d, J, RUN), m, mask=live)
    tl.store(row + rows_at(HEAD + 2 * D, j, d, J, RUN), a, mask=live)
    tl.store(row + rows_at(HEAD + 3 * D, j, d, J, RUN), q, mask=live)
    tl.store(row + parent * RUN + (1 if RUN > 1 else J), k, mask=there)


@triton.jit
def wide_child_sums(
    v, table, first, normaliser, gate, beta, g_score, out, B, I, R, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """s_i = sum_j p_ij dL/dw_ij of one child."""
    D: tl.constexpr = C * H
    b, i = (tl.program_id(0) // I).to(tl.int64), (tl.program_id(0) % I).to(tl.int64)
    row = table + b * ((HEAD + 4 * D) * J)
    s = tl.full((1,), 0.0, tl.float32)
    norm = s
    for lo in range(0, J, PARENTS):
        parent, j, d, there, live = tile_at(lo, J, D, PARENTS, WIDTH)
        f = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0)
        f -= rows_of(row, HEAD, j, d, J, D, RUN)
        a = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN)
        q = rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
        gw = benefits(f, a, q, slopes_of(row, parent, J, RUN))
        if SCORE:
            of_score = tl.load(g_score + b * J + parent, mask=there, other=0.0)
            gw += of_score * tl.load(beta + i * J + parent, mask=there, other=0.0)
        if DENSITY:
            precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
            p = couplings(f, precision, constants_of(row, parent, J, RUN), tl.load(normaliser + b * I + i))
        elif FIRST:
            p = tl.load(first + i * J + parent, mask=there, other=0.0)
        else:
            p = tl.where(there, 1.0 / J, 0.0)
        s += tl.sum(p * gw, 0)
        norm += tl.sum(p, 0)
    if DENSITY:
        s /= norm
    tl.store(out + b * I + i + tl.arange(0, 1), s)


@triton.jit
def wide_parent_gradients(
    v, table, first, normaliser, gate, beta, g_score, s, g_z, parts, B, I, R, steps, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    SHARED: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums of dL/da, times f and times f^2, over a chunk of children: only of iterations that begin with parents."""
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    parent, j, d, there, live = tile_at(tl.program_id(1) * PARENTS, J, D, PARENTS, WIDTH)
    row = table + b * ((HEAD + 4 * D) * J)
    constant = constants_of(row, parent, J, RUN)
    k = slopes_of(row, parent, J, RUN)
    centre = rows_of(row, HEAD, j, d, J, D, RUN)
    precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
    a = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN)
    q = rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
    if SCORE:
        score = tl.load(g_score + b * J + parent, mask=there, other=0.0)
    n = tl.full((PARENTS,), 0.0, tl.float32)
    once = tl.full((PARENTS, WIDTH), 0.0, tl.float32)
    twice = once
    begin = tl.program_id(2) * steps
    for i in range(begin, tl.minimum(begin + steps, I)):
        f = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0) - centre
        gw = benefits(f, a, q, k)
        if SCORE:
            gw += score * tl.load(beta + i * J + parent, mask=there, other=0.0)
        ga = tl.load(gate + b * I + i) * (gw - tl.load(s + b * I + i))
        if SHARED:
            ga += tl.load(g_z + b * I + i)
        ga = ga * couplings(f, precision, constant, tl.load(normaliser + b * I + i))
        n += ga
        y = ga[:, None] * f
        once += y
        twice += y * f
    p = parts + (tl.program_id(2) * B + b) * ((2 * D + 1) * J)
    tl.store(p + parent, n, mask=there)
    tl.store(p + (1 + d) * J + j, once, mask=live)
    tl.store(p + (1 + D + d) * J + j, twice, mask=live)


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
        f = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0)
        f -= rows_of(row, HEAD, j, d, J, D, RUN)
        g = tl.load(gate + b * I + i)
        if SCORE:
            score = tl.load(g_score + b * J + parent, mask=there, other=0.0)
            if DENSITY:
                precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
                z = tl.load(normaliser + b * I + i)
                p = couplings(f, precision, constants_of(row, parent, J, RUN), z)
            elif FIRST:
                p = tl.load(first + i * J + parent, mask=there, other=0.0)
            else:
                p = tl.where(there, 1.0 / J, 0.0)
            of_beta += g * p * score
        if FIRST:
            a = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN)
            q = rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
            gw = benefits(f, a, q, slopes_of(row, parent, J, RUN))
            if SCORE:
                gw += score * tl.load(beta + i * J + parent, mask=there, other=0.0)
            of_first += g * gw
    if SCORE:
        if AGAIN:
            of_beta += tl.load(g_beta + i * J + parent, mask=there, other=0.0)
        tl.store(g_beta + i * J + parent, of_beta, mask=there)
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
    b, i = (tl.program_id(0) // I).to(tl.int64), (tl.program_id(0) % I).to(tl.int64)
    parent, j, d, there, live = tile_at(tl.program_id(1) * PARENTS, J, D, PARENTS, WIDTH)
    at = b * I + i
    place = v + votes_at(b, i, j, d, B, R, J, C, H)
    vote = tl.load(place, mask=live, other=0.0)
    total = tl.full((PARENTS, WIDTH), 0.0, tl.float32)
    for t in tl.static_range(T):
        row = table + (t * B + b) * ((HEAD + 4 * D) * J)
        f = vote - rows_of(row, HEAD, j, d, J, D, RUN)
        a = rows_of(row, HEAD + 2 * D, j, d, J, D, RUN)
        q = rows_of(row, HEAD + 3 * D, j, d, J, D, RUN)
        g = tl.load(gate + (t * B * I if SHARED else 0) + at)
        if t > 0:
            precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
            p = couplings(f, precision, constants_of(row, parent, J, RUN), tl.load(normaliser + (t - 1) * B * I + at))
            gw = benefits(f, a, q, slopes_of(row, parent, J, RUN))
            if SCORE:
                score = tl.load(g_score + (t * B + b) * J + parent, mask=there, other=0.0)
                gw += score * tl.load(beta + i * J + parent, mask=there, other=0.0)
            ga = g * (gw - tl.load(s + t * B * I + at))
            if SHARED:
                ga += tl.load(g_z + (t - 1) * B * I + at)
            total -= (p * ga)[:, None] * f * precision
        elif FIRST:
            p = tl.load(first + i * J + parent, mask=there, other=0.0)
        else:
            p = tl.where(there, 1.0 / J, 0.0)
        total += (g * p)[:, None] * (a + 2 * q * f)
    tl.store(place, total, mask=live)
