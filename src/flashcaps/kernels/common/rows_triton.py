r"""Triton kernels over short rows: LayerNorm and squash of poses, many rows to a program, and the margin loss; in fp32.

LayerNorm, x^ = (x - mean) / sqrt(variance + eps), y = x^ w + b, with h = g w:
    gx = (h - mean(h) - x^ mean(h x^)) / sqrt(variance + eps),   gw = sum over rows of g x^,   gb = sum of g
squash, z = scale x + shift, n = ||z||, y = z f(n) with f = n / (1 + n^2):
    gz = g f + z (g . z) f' / n,   f' = (1 - n^2) / (1 + n^2)^2
margin loss of lengths v, t the targets:
    mean over b of  sum_k  t max(present - v, 0)^2 + down (1 - t) max(v - absent, 0)^2
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(t, n1, n2, s0, s1, s2, sd, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr):
    """Tile t: where it lies in x, where in a contiguous tensor, and which of it exists."""
    per = tl.cdiv(n2, ROWS)
    outer = (t // per).to(tl.int64)
    r = t % per * ROWS + tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, DP)[None, :]
    at = outer // n1 * s0 + outer % n1 * s1 + r.to(tl.int64) * s2 + d * sd
    return at, (outer * n2 + r) * D + d, (r < n2) & (d < D)


@triton.jit
def standardised(v, live, eps, D: tl.constexpr):
    """x^ and 1 / sigma of each row."""
    e = tl.where(live, v - tl.sum(v, 1)[:, None] / D, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(e * e, 1)[:, None] / D + eps)
    return e * rstd, rstd


@triton.jit
def layer_norm(
    x, weight, bias, y, n1, n2, s0, s1, s2, sd, eps, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    at, out, live = _tile(tl.program_id(0), n1, n2, s0, s1, s2, sd, D, DP, ROWS)
    v, _ = standardised(tl.load(x + at, mask=live, other=0.0).to(tl.float32), live, eps, D)
    d = tl.arange(0, DP)[None, :]
    if WEIGHT:
        v *= tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    if BIAS:
        v += tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(y + out, v.to(y.dtype.element_ty), mask=live)


@triton.jit
def layer_norm_backward(
    x, weight, g, gx, parts, tiles, n1, n2, s0, s1, s2, sd, eps, D: tl.constexpr, DP: tl.constexpr,
    ROWS: tl.constexpr, WEIGHT: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """parts (programs, 2, D): of gw and gb, each over the tiles of one program."""
    d = tl.arange(0, DP)[None, :]
    of_weight = tl.full((ROWS, DP), 0.0, tl.float32)
    of_bias = of_weight
    if WEIGHT:
        w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        at, out, live = _tile(t, n1, n2, s0, s1, s2, sd, D, DP, ROWS)
        h = tl.load(g + out, mask=live, other=0.0).to(tl.float32)
        v, rstd = standardised(tl.load(x + at, mask=live, other=0.0).to(tl.float32), live, eps, D)
        if SUMS:
            of_weight += h * v
            of_bias += h
        if WEIGHT:
            h *= w
        h = rstd * (h - tl.sum(h, 1)[:, None] / D - v * (tl.sum(h * v, 1)[:, None] / D))
        tl.store(gx + at, h.to(gx.dtype.element_ty), mask=live)
    if SUMS:
        p = parts + tl.program_id(0) * (2 * D) + tl.arange(0, DP)
        tl.store(p, tl.sum(of_weight, 0), mask=tl.arange(0, DP) < D)
        tl.store(p + D, tl.sum(of_bias, 0), mask=tl.arange(0, DP) < D)


@triton.jit
def squash(
    x, y, n1, n2, s0, s1, s2, sd, scale, shift, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr
):
    at, out, live = _tile(tl.program_id(0), n1, n2, s0, s1, s2, sd, D, DP, ROWS)
    z = tl.where(live, scale * tl.load(x + at, mask=live, other=0.0).to(tl.float32) + shift, 0.0)
    square = tl.sum(z * z, 1)[:, None]
    tl.store(y + out, (z * (tl.sqrt(square) / (1 + square))).to(y.dtype.element_ty), mask=live)


@triton.jit
def squash_backward(
    x, g, gx, n1, n2, s0, s1, s2, sd, scale, shift, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr
):
    at, out, live = _tile(tl.program_id(0), n1, n2, s0, s1, s2, sd, D, DP, ROWS)
    z = tl.where(live, scale * tl.load(x + at, mask=live, other=0.0).to(tl.float32) + shift, 0.0)
    h = tl.load(g + out, mask=live, other=0.0).to(tl.float32)
    square = tl.sum(z * z, 1)[:, None]
    n, one = tl.sqrt(square), 1 + square
    slope = tl.sum(h * z, 1)[:, None] * (1 - square) / (tl.where(n > 0, n, 1.0) * one * one)
    tl.store(gx + at, (scale * (h * (n / one) + z * slope)).to(gx.dtype.element_ty), mask=live)


@triton.jit
def margin(
    v, targets, loss, gradient, B, sb, sk, present, absent, down, K: tl.constexpr, KP: tl.constexpr,
    ROWS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The loss and its gradient (B, K) in one program: all there is to read is a number per example and class."""
    k = tl.arange(0, KP)[None, :]
    total = tl.full((ROWS, KP), 0.0, tl.float32)
    for lo in range(0, B, ROWS):
        b = lo + tl.arange(0, ROWS)[:, None]
        live = (b < B) & (k < K)
        x = tl.load(v + b * sb + k * sk, mask=live, other=0.0).to(tl.float32)
        if INDEX:
            t = tl.where(tl.load(targets + b, mask=b < B, other=-1) == k, 1.0, 0.0)
        else:
            t = tl.load(targets + b * K + k, mask=live, other=0.0).to(tl.float32)
        short, long = tl.maximum(present - x, 0.0), tl.maximum(x - absent, 0.0)
        total += tl.where(live, t * short * short + down * (1 - t) * long * long, 0.0)
        tl.store(gradient + b * K + k, 2 * (down * (1 - t) * long - t * short) / B, mask=live)
    tl.store(loss, tl.sum(total) / B)
