r"""Backward kernels of `_fit_triton` that have a parent per lane and walk over nothing but chunks.

`slopes` begins an iteration: from the gradients of its parents and of their logits to the table of K, A and Q that
the walks of `_fit_backward` read. `finish_parents` ends it: from what the walks summed to the gradients of the parents
below.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from .forward import log_sigmoid
from .lanes import AHEAD, HEAD, gather, load_chunks

ROWS = tl.constexpr(16)  # read before the first of them is written: a read waits for the writes before it


@triton.jit
def load_rows(p, mask, other, J: tl.constexpr, N: tl.constexpr):
    """At most ROWS of N rows of J, all under way at once."""
    x = ()
    for n in tl.static_range(ROWS):
        if n < N:
            x = x + (tl.load(p + n * J, mask=mask, other=other),)
    return x


@triton.jit
def slopes(
    logit, weight, mean, variance, below, centre, around, slope, shift, g_logit, g_prior, g_mean, g_variance,
    g_score, g_offset, g_slope, g_shift, table, scale, eps, count, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr,
    DENSITY: tl.constexpr, OFFSET: tl.constexpr, SLOPE: tl.constexpr, SPREAD: tl.constexpr, SHIFT: tl.constexpr,
    GIVEN: tl.constexpr, PRIOR: tl.constexpr, MEAN: tl.constexpr, VARIANCE: tl.constexpr, AGAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The table of parents fitted about others (below: their logit; centre; around: their variance).

    The gradient of a logit is GIVEN, or that of the PRIOR it makes, or both; g_score takes it. g_shift (B, D, J): the
    sum of w (A + 2 Q e) over children; e sums to eps mean, weighted.
    """
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = x < count
    b, j = (x // J).to(tl.int64), x % J
    n = tl.load(weight + x, mask=live, other=0.0)
    divisor = tl.where(live, n + eps, 1.0)
    g = tl.full((BLOCK,), 0.0, tl.float32)
    if GIVEN:
        g += tl.load(g_logit + x, mask=live, other=0.0)
    if PRIOR:
        g += tl.load(g_prior + x, mask=live, other=0.0) * tl.sigmoid(-tl.load(logit + x, mask=live, other=0.0))
    tl.store(g_score + x, g, mask=live)
    k = tl.full((BLOCK,), 0.0, tl.float32)
    if OFFSET:
        gather(g_offset + x, 0, live, (scale * g,), 1, 1, AGAIN)
    if SLOPE:
        k += scale * g * tl.load(slope + j, mask=live, other=0.0)
        gather(g_slope + x, 0, live, (scale * g * n,), 1, 1, AGAIN)
    out = table + b * ((HEAD + 4 * D) * J) + j * RUN
    if DENSITY:
        constant = log_sigmoid(tl.load(below + x, mask=live, other=0.0))
    for lo in tl.static_range(0, D, ROWS):
        at = (b * D + lo) * J + j
        means, variances = load_rows(mean + at, live, 0.0, J, D - lo), load_rows(variance + at, live, 1.0, J, D - lo)
        g_means = load_rows(g_mean + at, live, 0.0, J, D - lo if MEAN else 0)
        g_variances = load_rows(g_variance + at, live, 0.0, J, D - lo if VARIANCE else 0)
        centres = load_rows(centre + at, live, 0.0, J, D - lo if DENSITY else 0)
        spreads = load_rows(around + at, live, 1.0, J, D - lo if DENSITY else 0)
        shifts = load_rows(shift + lo * J + j, live, 0.0, J, D - lo if SHIFT else 0)
        g_shifts = load_rows(g_shift + at, live, 0.0, J, D - lo if SHIFT and AGAIN else 0)
        for d in tl.static_range(ROWS if D - lo > ROWS else D - lo):
            p = out + (HEAD + (lo + d) // RUN * RUN) * J + (lo + d) % RUN
            m, own = means[d], variances[d]
            q = tl.full((BLOCK,), 0.0, tl.float32)
            a = q
            if VARIANCE:
                q += g_variances[d]
            if SPREAD:
                k -= 0.5 * scale * g * tl.log(own)
                q -= 0.5 * scale * g * n / own
            q = q / divisor
            if MEAN:
                a = g_means[d] / divisor
            a -= 2 * eps * m * q / divisor
            k -= q * (own - eps)
            if SHIFT:
                more = n * a + 2 * q * eps * m
                if AGAIN:
                    more += g_shifts[d]
                tl.store(g_shift + at + d * J, more, mask=live)
            if DENSITY:
                mu, var = centres[d], spreads[d]
                constant -= 0.5 * tl.log(var)
                off = mu - m
                k += off * (a + q * off)
                a += 2 * q * off
                m = mu
                tl.store(p + D * J, 1 / var, mask=live)
            if SHIFT:
                m -= shifts[d]
            tl.store(p, m, mask=live)
            tl.store(p + 2 * D * J, a, mask=live)
            tl.store(p + 3 * D * J, q, mask=live)
    if DENSITY:
        tl.store(out, constant, mask=live)
    tl.store(out + (1 if RUN > 1 else J), k, mask=live)


@triton.jit
def finish_parents(
    parts, around, g_prior, g_mean, g_variance, g_shift, count, chunks, J: tl.constexpr, D: tl.constexpr,
    SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What moves a bias moves the votes away from the centre: its gradient loses that of the centre."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (b, d, j)
    live = x < count
    b, d, j = x // (D * J), x // J % D, x % J
    stride = (count // D) * (2 * D + 1)
    p = parts + b * ((2 * D + 1) * J) + j
    n = tl.full((BLOCK,), 0.0, tl.float32)
    first, second = n, n
    for k in range(0, chunks, AHEAD):
        own = load_chunks(p, stride, k, chunks, live, AHEAD)
        f = load_chunks(p + (1 + d) * J, stride, k, chunks, live, AHEAD)
        f2 = load_chunks(p + (1 + D + d) * J, stride, k, chunks, live, AHEAD)
        for c in tl.static_range(AHEAD):
            n += own[c]
            first += f[c]
            second += f2[c]
    precision = 1 / tl.load(around + x, mask=live, other=1.0)
    tl.store(g_prior + b * J + j, n, mask=live & (d == 0))
    tl.store(g_mean + x, first * precision, mask=live)
    if SHIFT:
        tl.store(g_shift + x, tl.load(g_shift + x, mask=live, other=0.0) - first * precision, mask=live)
    tl.store(g_variance + x, 0.5 * precision * (second * precision - n), mask=live)
