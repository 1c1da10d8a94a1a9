r"""Kernels of `_fit_triton` for stored votes of wide poses: a pose lies across lanes, as a row of a tile.

The kernels of `_fit_forward` and `_fit_backward` hold a pose, and what is summed of it, in the registers of one lane.
At 64 elements there are too few registers, and unrolled code takes minutes to compile. Here a tile is PARENTS x WIDTH,
a vote is read where the matrix product left it, (G, B, R, C, J, H), and what belongs to an element is summed by
walking over children, what belongs to a vote across lanes. Numbers, tables and parts are those of the other kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lanes import HEAD

LOWEST = tl.constexpr(-3.0e38)  # not -inf: a difference of two would be NaN


@triton.jit
def tile_at(lo, J: tl.constexpr, D: tl.constexpr, PARENTS: tl.constexpr, WIDTH: tl.constexpr):
    """Parents from `lo` on, as a row and down a tile, elements across it, and which parents and elements there are."""
    parent = lo + tl.arange(0, PARENTS)
    j, d = parent[:, None], tl.arange(0, WIDTH)[None, :]
    return parent, j, d, parent < J, (j < J) & (d < D)


@triton.jit
def votes_at(b, i, j, d, B, R, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr):
    """Where the votes of child i of example b for parents j are."""
    return ((i // R * B + b) * R + i % R) * (C * J * H) + d // H * (J * H) + j * H + d % H


@triton.jit
def rows_at(row, j, d, J: tl.constexpr, RUN: tl.constexpr):
    """Where the rows of parents j from `row` on are in a table."""
    return row * J + d // RUN * (RUN * J) + j * RUN + d % RUN


@triton.jit
def rows_of(table, row, j, d, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr):
    """D of them: (PARENTS, WIDTH), 0 where there is none."""
    return tl.load(table + rows_at(row, j, d, J, RUN), mask=(j < J) & (d < D), other=0.0)


@triton.jit
def constants_of(table, parent, J: tl.constexpr, RUN: tl.constexpr):
    """Log of prior and scale, lowest where there is no parent: its coupling is 0."""
    return tl.load(table + parent * RUN, mask=parent < J, other=LOWEST)


@triton.jit
def couplings(f, precision, constant, z):
    """p_ij = exp(a_ij - Z_i), of deviations f (PARENTS, WIDTH)"""
    return tl.exp(constant - 0.5 * tl.sum(f * f * precision, 1) - z)


@triton.jit
def wide_normaliser(
    v, table, out, B, I, R, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr,
    PARENTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Z_i of one child."""
    D: tl.constexpr = C * H
    b, i = (tl.program_id(0) // I).to(tl.int64), (tl.program_id(0) % I).to(tl.int64)
    row = table + b * ((HEAD + 2 * D) * J)
    top = tl.full((1,), LOWEST, tl.float32)
    total = tl.full((1,), 0.0, tl.float32)
    for lo in range(0, J, PARENTS):
        parent, j, d, _, live = tile_at(lo, J, D, PARENTS, WIDTH)
        f = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0)
        f -= rows_of(row, HEAD, j, d, J, D, RUN)
        precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
        a = constants_of(row, parent, J, RUN) - 0.5 * tl.sum(f * f * precision, 1)
        higher = tl.maximum(top, tl.max(a, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(a - higher), 0)
        top = higher
    tl.store(out + b * I + i + tl.arange(0, 1), top + tl.log(total))


@triton.jit
def wide_moments(
    v, table, first, normaliser, gate, beta, out, B, I, R, steps, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    RUN: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, PARENTS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Weight, score, mean and spread over a chunk of children, by Welford's update."""
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    parent, j, d, there, live = tile_at(tl.program_id(1) * PARENTS, J, D, PARENTS, WIDTH)
    row = table + b * ((HEAD + 2 * D) * J)
    if DENSITY:
        constant = constants_of(row, parent, J, RUN)
        centre = rows_of(row, HEAD, j, d, J, D, RUN)
        precision = rows_of(row, HEAD + D, j, d, J, D, RUN)
    n = tl.full((PARENTS,), 0.0, tl.float32)
    score = n
    mean = tl.full((PARENTS, WIDTH), 0.0, tl.float32)
    spread = mean
    begin = tl.program_id(2) * steps
    for i in range(begin, tl.minimum(begin + steps, I)):
        vote = tl.load(v + votes_at(b, i, j, d, B, R, J, C, H), mask=live, other=0.0)
        use = tl.load(gate + b * I + i)
        if DENSITY:
            f = vote - centre
            use = use * couplings(f, precision, constant, tl.load(normaliser + b * I + i))
        elif FIRST:
            use = use * tl.load(first + i * J + parent, mask=there, other=0.0)
        else:
            use = tl.where(there, use * (1.0 / J), 0.0)
        if SCORE:
            score += use * tl.load(beta + i * J + parent, mask=there, other=0.0)
        total = n + use
        step = use / tl.where(total > 0, total, 1.0)
        delta = vote - mean
        mean += step[:, None] * delta
        spread += (n * step)[:, None] * delta * delta
        n = total
    p = out + (tl.program_id(2) * B + b) * ((2 * D + 2) * J)
    tl.store(p + parent, n, mask=there)
    tl.store(p + J + parent, score, mask=there)
    tl.store(p + (2 + d) * J + j, mean, mask=live)
    tl.store(p + (2 + D + d) * J + j, spread, mask=live)
