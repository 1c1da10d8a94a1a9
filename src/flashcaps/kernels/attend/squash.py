"""Triton kernels that add up partial sums, and those of dynamic routing's squash around them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_up(parts, out, chunks, n, E: tl.constexpr, CT: tl.constexpr):
    """Sum of (chunks, n) over chunks, CT loads in flight."""
    e = tl.program_id(0).to(tl.int64) * E + tl.arange(0, E)
    c = tl.arange(0, CT)[:, None]
    total = tl.zeros((E,), tl.float32)
    for first in range(0, chunks, CT):
        at = (first + c).to(tl.int64) * n + e[None, :]
        total += tl.sum(tl.load(parts + at, (first + c < chunks) & (e < n)[None, :], 0.0), 0)
    tl.store(out + e, total.to(out.dtype.element_ty), e < n)


@triton.jit
def _sum_of_rows(parts, at, inside, chunks, n, CT: tl.constexpr):
    """Sum of (chunks, n) over chunks at addresses `at` (RT, DP), CT loads in flight."""
    c = tl.arange(0, CT)[:, None, None]
    total = tl.zeros(at.shape, tl.float32)
    for first in range(0, chunks, CT):
        here = (first + c).to(tl.int64) * n + at[None]
        total += tl.sum(tl.load(parts + here, (first + c < chunks) & inside[None], 0.0).to(tl.float32), 0)
    return total


@triton.jit
def settle(parts, bias, seen, s, v, query, chunks, rows, J, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr,
           CT: tl.constexpr, BIAS: tl.constexpr, SEEN: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """s = sum of parts + bias, v = s n / (1 + n^2) with n = ||s||, and v, or the next query = seen + v; rows (b, j)."""
    r = (tl.program_id(0) * RT + tl.arange(0, RT))[:, None]
    k = tl.arange(0, DP)[None, :]
    at, inside = r * D + k, (r < rows) & (k < D)
    x = _sum_of_rows(parts, at, inside, chunks, rows * D, CT)
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
def unsettle(grad, parts, s, total, gs, chunks, rows, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr,
             CT: tl.constexpr, LATER: tl.constexpr):  # fmt: skip
    """Gradient of `settle`, of the output if LATER is 0: total = sum of gq's parts + what came from later iterations
    (LATER 2 and more), gs = total f + s (s . total) f' / n with f = n / (1 + n^2), f' = (1 - n^2) / (1 + n^2)^2; 0 at
    n = 0.
    """
    r = (tl.program_id(0) * RT + tl.arange(0, RT))[:, None]
    k = tl.arange(0, DP)[None, :]
    at, inside = r * D + k, (r < rows) & (k < D)
    if LATER == 0:
        g = tl.load(grad + at, inside, 0.0).to(tl.float32)
    else:
        g = _sum_of_rows(parts, at, inside, chunks, rows * D, CT)
        if LATER > 1:
            g += tl.load(total + at, inside, 0.0)
        tl.store(total + at, g, inside)
    x = tl.load(s + at, inside, 0.0)
    n2 = tl.sum(x * x, 1)[:, None]
    share = 1.0 / (1.0 + n2)
    slope = tl.where(n2 > 0, (1.0 - n2) * share * share / tl.sqrt(tl.where(n2 > 0, n2, 1.0)), 0.0)
    out = g * (tl.sqrt(n2) * share) + x * (tl.sum(x * g, 1)[:, None] * slope)
    tl.store(gs + at, out.to(gs.dtype.element_ty), inside)
