"""Triton kernels that end a step: partial sums added up over their chunks, in order, then squashed (dynamic) or
normalised (attention), and the gradients of both. Rows are (b, j), of D numbers each; all sums are in fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.rows_triton import standardised


@triton.jit
def sum_parts(parts, out, chunks, n, E: tl.constexpr, CT: tl.constexpr):
    """Sum of (chunks, n) over chunks, CT loads in flight."""
    e = tl.program_id(0).to(tl.int64) * E + tl.arange(0, E)
    c = tl.arange(0, CT)[:, None]
    total = tl.zeros((E,), tl.float32)
    for first in range(0, chunks, CT):
        at = (first + c).to(tl.int64) * n + e[None, :]
        total += tl.sum(tl.load(parts + at, (first + c < chunks) & (e < n)[None, :], 0.0), 0)
    tl.store(out + e, total.to(out.dtype.element_ty), e < n)


@triton.jit
def _tile(t, rows, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr):
    """Rows and columns of tile t, its addresses in (rows, D), and which of them exist."""
    r = (t * RT + tl.arange(0, RT))[:, None]
    k = tl.arange(0, DP)[None, :]
    return r, k, r * D + k, (r < rows) & (k < D)


@triton.jit
def _sum_rows(parts, at, inside, chunks, n, CT: tl.constexpr):
    """Sum of (chunks, n) over chunks at addresses `at` (RT, DP), CT loads in flight."""
    c = tl.arange(0, CT)[:, None, None]
    total = tl.zeros(at.shape, tl.float32)
    for first in range(0, chunks, CT):
        here = (first + c).to(tl.int64) * n + at[None]
        total += tl.sum(tl.load(parts + here, (first + c < chunks) & inside[None], 0.0).to(tl.float32), 0)
    return total


@triton.jit
def squash_forward(
    parts, bias, seen, s, v, query, chunks, rows, J, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr,
    CT: tl.constexpr, BIAS: tl.constexpr, SEEN: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """s = sum of parts + bias, v = s n / (1 + n^2) with n = ||s||; v itself if LAST, else the next query seen + v."""
    r, k, at, inside = _tile(tl.program_id(0), rows, D, DP, RT)
    x = _sum_rows(parts, at, inside, chunks, rows * D, CT)
    if BIAS:
        x += tl.load(bias + (r % J) * D + k, inside, 0.0).to(tl.float32)
    n2 = tl.sum(x * x, 1)[:, None]
    pose = x * (tl.sqrt(n2) / (1.0 + n2))
    tl.store(s + at, x, inside)
    if LAST:
        tl.store(v + at, pose.to(v.dtype.element_ty), inside)
    else:
        if SEEN:
            pose += tl.load(seen + at, inside, 0.0).to(tl.float32)
        tl.store(query + at, pose.to(query.dtype.element_ty), inside)


@triton.jit
def squash_backward(
    grad, parts, s, total, gs, chunks, rows, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr,
    CT: tl.constexpr, LATER: tl.constexpr,
):  # fmt: skip
    """gs of an iteration that LATER others follow (2: two or more). The gradient g of its v is `grad` if none does,
    else the sum of gq's parts and of the total of later iterations, which is kept in `total`:

    gs = g f + s (s . g) f' / n,  f = n / (1 + n^2),  f' = (1 - n^2) / (1 + n^2)^2;  0 at n = 0
    """
    _, _, at, inside = _tile(tl.program_id(0), rows, D, DP, RT)
    if LATER == 0:
        g = tl.load(grad + at, inside, 0.0).to(tl.float32)
    else:
        g = _sum_rows(parts, at, inside, chunks, rows * D, CT)
        if LATER > 1:
            g += tl.load(total + at, inside, 0.0)
        tl.store(total + at, g, inside)
    x = tl.load(s + at, inside, 0.0)
    n2 = tl.sum(x * x, 1)[:, None]
    share = 1.0 / (1.0 + n2)
    slope = tl.where(n2 > 0, (1.0 - n2) * share * share / tl.sqrt(tl.where(n2 > 0, n2, 1.0)), 0.0)
    out = g * (tl.sqrt(n2) * share) + x * (tl.sum(x * g, 1)[:, None] * slope)
    tl.store(gs + at, out.to(gs.dtype.element_ty), inside)


@triton.jit
def norm_forward(
    parts, gamma, beta, s, out, chunks, rows, scale, eps, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr,
    CT: tl.constexpr, NORM: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """s = sum of parts, written if STORE, and scale LayerNorm(s), or scale s without NORM."""
    _, k, at, inside = _tile(tl.program_id(0), rows, D, DP, RT)
    x = _sum_rows(parts, at, inside, chunks, rows * D, CT)
    if STORE:
        tl.store(s + at, x, inside)
    if NORM:
        x, _ = standardised(x, inside, eps, D)
        x = x * tl.load(gamma + k, k < D, 0.0).to(tl.float32) + tl.load(beta + k, k < D, 0.0).to(tl.float32)
    tl.store(out + at, (x * scale).to(out.dtype.element_ty), inside)


@triton.jit
def norm_backward(
    parts, gamma, s, gs, sums, chunks, rows, tiles, scale, eps, D: tl.constexpr, DP: tl.constexpr,
    RT: tl.constexpr, CT: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """gs from the gradient of `norm_forward`'s output, scale (sum of parts). sums (programs, 2, D): gradients of gamma
    and beta, each over the tiles of one program.
    """
    of_gamma = tl.zeros((RT, DP), tl.float32)
    of_beta = tl.zeros((RT, DP), tl.float32)
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        _, k, at, inside = _tile(t, rows, D, DP, RT)
        g = _sum_rows(parts, at, inside, chunks, rows * D, CT) * scale
        if NORM:
            x, rstd = standardised(tl.load(s + at, inside, 0.0), inside, eps, D)
            of_gamma += g * x
            of_beta += g
            g *= tl.load(gamma + k, k < D, 0.0).to(tl.float32)
            g = rstd * (g - tl.sum(g, 1)[:, None] / D - x * (tl.sum(g * x, 1)[:, None] / D))
        tl.store(gs + at, g.to(gs.dtype.element_ty), inside)
    if NORM:
        p = sums + tl.program_id(0) * (2 * D) + tl.arange(0, DP)
        tl.store(p, tl.sum(of_gamma, 0), tl.arange(0, DP) < D)
        tl.store(p + D, tl.sum(of_beta, 0), tl.arange(0, DP) < D)
