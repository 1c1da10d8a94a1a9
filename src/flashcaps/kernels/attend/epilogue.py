r"""How a launch ends: partial sums added up over their chunks, in order, then squashed (dynamic) or normalised
(attention), and the gradients of both. Rows are (b, j), of D numbers each; all sums are in fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.rows_triton import standardised


@triton.jit
def _tile(t, rows, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr):
    """Rows and columns of tile t, its addresses in (rows, D), and which of them exist."""
    r = (t * RT + tl.arange(0, RT))[:, None]
    k = tl.arange(0, DP)[None, :]
    return r, k, r.to(tl.int64) * D + k, (r < rows) & (k < D)


@triton.jit
def _sum_rows(parts, at, inside, chunks, n, CT: tl.constexpr):
    """Sum of (chunks, n) over chunks at addresses `at`, CT loads in flight."""
    c = tl.arange(0, CT)[:, None, None]
    total = tl.zeros(at.shape, tl.float32)
    for first in range(0, chunks, CT):
        here = (first + c).to(tl.int64) * n + at[None]
        total += tl.sum(tl.load(parts + here, (first + c < chunks) & inside[None], 0.0).to(tl.float32), 0)
    return total


@triton.jit
def _squash_gradient(g, x):
    """gs = g f + s (s . g) f' / n,  f = n / (1 + n^2),  f' = (1 - n^2) / (1 + n^2)^2;  0 at n = 0"""
    n2 = tl.sum(x * x, 1)[:, None]
    share = 1.0 / (1.0 + n2)
    slope = tl.where(n2 > 0, (1.0 - n2) * share * share / tl.sqrt(tl.where(n2 > 0, n2, 1.0)), 0.0)
    return g * (tl.sqrt(n2) * share) + x * (tl.sum(x * g, 1)[:, None] * slope)


@triton.jit
def _normalised(x, gamma, beta, k, inside, eps, D: tl.constexpr):
    x, _ = standardised(x, inside, eps, D)
    return x * tl.load(gamma + k, k < D, 0.0).to(tl.float32) + tl.load(beta + k, k < D, 0.0).to(tl.float32)


@triton.jit
def finish(
    program, programs, parts, chunks, rows, J, bias, beta, s, total, out, before, query, more, scale, next_scale, eps,
    D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
    STORE: tl.constexpr,
):  # fmt: skip
    """out, from the sum x of parts (chunks, rows, D). KIND, forward, where s keeps x if STORE:

    "sum":     scale x
    "squash":  x, and bias_j if BIAS, times n / (1 + n^2) with n its length, added to `total` if there is `more`
    "norm":    scale LayerNorm(x), whose scale and shift are bias and beta, or scale x without BIAS

    and backward, to the gradient of s, where x is that of what was made from it:

    "squash gradient":  x and, if there is `more`, the `total` of later iterations, which is kept, through squash
    "norm gradient":    scale x through LayerNorm, whose gradients of scale and shift this program adds up in total
                        (programs, 2, D); and if there is `more`, query: next_scale LayerNorm(before)
    """
    of_gamma = tl.zeros((RT, DP), tl.float32)
    of_beta = tl.zeros((RT, DP), tl.float32)
    for t in range(program, tl.cdiv(rows, RT), programs):
        r, k, at, inside = _tile(t, rows, D, DP, RT)
        x = _sum_rows(parts, at, inside, chunks, rows * D, CT)
        if KIND == "squash" and BIAS:
            x += tl.load(bias + r % J * D + k, inside, 0.0).to(tl.float32)
        if STORE:
            tl.store(s + at, x, inside)
        if KIND == "squash":
            n2 = tl.sum(x * x, 1)[:, None]
            x = x * (tl.sqrt(n2) / (1.0 + n2)) + tl.load(total + at, inside & (more > 0), 0.0).to(tl.float32)
        elif KIND == "squash gradient":
            x += tl.load(total + at, inside & (more > 0), 0.0)
            tl.store(total + at, x, inside)
            x = _squash_gradient(x, tl.load(s + at, inside, 0.0))
        elif KIND == "norm gradient":
            x *= scale
            earlier = tl.load(before + at, inside & (more > 0), 0.0)
            if BIAS:
                earlier = _normalised(earlier, bias, beta, k, inside, eps, D)
                y, rstd = standardised(tl.load(s + at, inside, 0.0), inside, eps, D)
                of_gamma += x * y
                of_beta += x
                x *= tl.load(bias + k, k < D, 0.0).to(tl.float32)
                x = rstd * (x - tl.sum(x, 1)[:, None] / D - y * (tl.sum(x * y, 1)[:, None] / D))
            tl.store(query + at, (earlier * next_scale).to(query.dtype.element_ty), inside & (more > 0))
        else:
            if KIND == "norm" and BIAS:
                x = _normalised(x, bias, beta, k, inside, eps, D)
            x *= scale
        tl.store(out + at, x.to(out.dtype.element_ty), inside)
    if KIND == "norm gradient" and BIAS:
        k = tl.arange(0, DP)
        sums = total + program * (2 * D) + k
        tl.store(sums, tl.sum(of_gamma, 0), k < D)
        tl.store(sums + D, tl.sum(of_beta, 0), k < D)


@triton.jit(do_not_specialize=["count", "more"])
def finish_alone(
    parts, counters, count, chunks, rows, J, bias, beta, s, total, out, before, query, more, scale, next_scale, eps,
    D: tl.constexpr, RP: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
    STORE: tl.constexpr,
):  # fmt: skip
    """`finish` as a launch of its own, after which so many counters are 0."""
    if tl.program_id(0) == 0:
        for first in range(0, count, 256):
            at = first + tl.arange(0, 256)
            tl.store(counters + at, tl.zeros((256,), tl.int32), at < count)
    finish(
        tl.program_id(0), tl.num_programs(0), parts, chunks, rows, J, bias, beta, s, total, out, before, query, more,
        scale, next_scale, eps, D, RP, RT, CT, KIND, BIAS, STORE,
    )  # fmt: skip
