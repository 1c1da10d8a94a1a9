r"""Backward kernels of `_fit_triton` for what belongs to a child and a parent: betas, first couplings, stored votes.

Most layers never launch them: where children have transforms of their own, `weight_gradients` sums the first two.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from .backward import coupling
from .lanes import HEAD, benefit, deviations, gather, less, load, load_table, plus, repeat, save, vote_gradient


@triton.jit
def pair_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, g_beta, g_first, B, I, R, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Of what belongs to a child and a parent: beta, the first coupling."""
    D: tl.constexpr = C * H
    i = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * PARENTS + tl.arange(0, PARENTS)
    there = j < J
    of_beta = tl.full((PARENTS,), 0.0, tl.float32)
    of_first = of_beta
    p0 = 1.0 / J
    if K > 0:
        transform = load(w + i // R * (K * J * H) + j * H, J * H, there, K * H, H)
        if OWN:
            bias = load(own + i // R * (C * J * H) + j * H, J * H, there, D, H)
    if FIRST:
        p0 = tl.load(first + i * J + j, mask=there, other=0.0)
    for b in range(B):
        at = b * I + i
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN
        centre = load_table(row, HEAD, there, D, J, RUN)
        if K > 0:
            uu, ww = load(u + at * (C * K) + tl.arange(0, 1), 0, None, C * K, C * K), transform
            if OWN:
                centre = less(centre, bias, D)
        else:
            uu, ww = load(w + (at * J + j) * D, 0, there, D, D), ()
        f = deviations(uu, ww, centre, C, K, H)
        precision = load_table(row, HEAD + D, there, D if DENSITY else 0, J, RUN)
        z = tl.load(normaliser + at) if DENSITY else 0.0
        p = coupling(f, tl.load(row, mask=there, other=0.0), precision, z, p0, D, DENSITY)
        g = tl.load(gate + at)
        if SCORE:
            score = tl.load(g_score + b * J + j, mask=there, other=0.0)
            of_beta += g * p * score
        if FIRST:
            a = load_table(row, HEAD + 2 * D, there, D, J, RUN)
            q = load_table(row, HEAD + 3 * D, there, D, J, RUN)
            gw = benefit(tl.load(row + (1 if RUN > 1 else J), mask=there, other=0.0), f, a, q, D)
            if SCORE:
                gw += score * tl.load(beta + i * J + j, mask=there, other=0.0)
            of_first += g * gw
    if SCORE:
        gather(g_beta + i * J + j, 0, there, (of_beta,), 1, 1, AGAIN)
    if FIRST:
        tl.store(g_first + i * J + j, of_first, mask=there)


@triton.jit
def vote_gradients(
    v, table, first, normaliser, gate, beta, g_score, s, g_z, begin, B, I, J: tl.constexpr, D: tl.constexpr,
    RUN: tl.constexpr, T: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, PARENTS: tl.constexpr,
):  # fmt: skip
    """The gradient of stored votes, of all T iterations at once, in the place of the votes.

    v: from example `begin` on. Of each iteration: table, g_score (B, J), s and, SHARED, gate (B, I); of each but the
    first: normaliser and g_z (B, I).
    """
    b = (begin + tl.program_id(0)).to(tl.int64)
    i = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    j = (tl.program_id(2) * PARENTS + tl.arange(0, PARENTS))[None, :]
    here, there = i < I, j < J
    live = here & there
    at = b * I + i
    vote = v + ((tl.program_id(0).to(tl.int64) * I + i) * J + j) * D
    uu = load(vote, 0, live, D, D)
    zero = tl.full((ROWS, PARENTS), 0.0, tl.float32)
    total = repeat(zero, D)
    for t in tl.static_range(T):
        row = table + (t * B + b) * ((HEAD + 4 * D) * J) + j * RUN
        f = deviations(uu, (), load_table(row, HEAD, there, D, J, RUN), 1, 0, D)
        a = load_table(row, HEAD + 2 * D, there, D, J, RUN)
        q = load_table(row, HEAD + 3 * D, there, D, J, RUN)
        precision = load_table(row, HEAD + D, there, D if t > 0 else 0, J, RUN)
        g = tl.load(gate + (t * B * I if SHARED else 0) + at, mask=here, other=0.0)
        p, ga = 1.0 / J, 0.0
        if t == 0 and FIRST:
            p = tl.load(first + i * J + j, mask=live, other=0.0)
        if t > 0:
            z = tl.load(normaliser + (t - 1) * B * I + at, mask=here, other=0.0)
            p = coupling(f, tl.load(row, mask=there, other=0.0), precision, z, p, D, True)
            gw = benefit(tl.load(row + (1 if RUN > 1 else J), mask=there, other=0.0), f, a, q, D)
            if SCORE:
                score = tl.load(g_score + (t * B + b) * J + j, mask=there, other=0.0)
                gw += score * tl.load(beta + i * J + j, mask=live, other=0.0)
            ga = g * (gw - tl.load(s + t * B * I + at, mask=here, other=0.0))
            if SHARED:
                ga += tl.load(g_z + (t - 1) * B * I + at, mask=here, other=0.0)
            ga = p * ga
        total = plus(total, 1.0, vote_gradient(g * p + zero, ga, f, precision, a, q, D, t > 0), D)
    save(vote, 1, live, total, D)
