r"""Triton kernels of BatchNorm, over x as (rows, C): a tile is ROWS rows x CP channels, all sums in fp32.

Statistics. A program adds up d = x - K and d^2, K its first row: its mean is K + sum d / n, its M2 (squared deviations
from that mean) sum d^2 - (sum d)^2 / n. K is one of the n numbers, so that (K - mean)^2 <= M2 and the difference loses
at most log2 n of its bits, however large the mean. `merge_moments` merges programs in the order of their number:
    mean = sum n_p mean_p / n,   M2 = sum M2_p + n_p (mean_p - mean)^2
Gradients, x^ = (x - mean) rstd, h the gradient of y where y > 0, else 0:
    gb = sum h,   gw = sum h x^,   gx = w rstd (h - gb / n - x^ gw / n),   gr = h
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _channels(C: tl.constexpr, CP: tl.constexpr):
    """The program's channels, (1, CP), and which exist."""
    c = tl.program_id(1) * CP + tl.arange(0, CP)[None, :]
    return c, c < C


@triton.jit
def _tile(t, rows, C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr):
    """Addresses of tile t and which of it exist."""
    c, inside = _channels(C, CP)
    r = t * ROWS + tl.arange(0, ROWS)[:, None]
    return r.to(tl.int64) * C + c, (r < rows) & inside


@triton.jit
def _rows_of(p, programs, rows, ROWS: tl.constexpr):
    """Rows of program p, which has tiles p, p + programs, ...; the last tile of all may be short."""
    tiles = tl.cdiv(rows, ROWS)
    short = tl.where((tiles - 1) % programs == p, tiles * ROWS - rows, 0)
    return tl.cdiv(tiles - p, programs) * ROWS - short


@triton.jit
def _of_channel(statistics, weight, bias, eps, C: tl.constexpr, CP: tl.constexpr):
    """mean, 1 / sigma, w and b of the program's channels, (1, CP)."""
    c, inside = _channels(C, CP)
    rstd = 1 / tl.sqrt(tl.load(statistics + C + c, mask=inside, other=1.0) + eps)
    w = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    return tl.load(statistics + c, mask=inside, other=0.0), rstd, w, b


@triton.jit
def moments(x, parts, rows, C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr):
    """parts (programs, 2, C): mean and M2 of each program's rows. The next tile is read before this one is summed."""
    first, programs = tl.program_id(0), tl.num_programs(0)
    c, inside = _channels(C, CP)
    shift = tl.load(x + (first * ROWS).to(tl.int64) * C + c, mask=inside, other=0.0).to(tl.float32)
    once = tl.full((ROWS, CP), 0.0, tl.float32)
    squared = once
    at, next_live = _tile(first, rows, C, CP, ROWS)
    next_x = tl.load(x + at, mask=next_live, other=0.0)
    for t in range(first, tl.cdiv(rows, ROWS), programs):
        v, live = next_x, next_live
        at, next_live = _tile(t + programs, rows, C, CP, ROWS)
        next_x = tl.load(x + at, mask=next_live, other=0.0)
        d = tl.where(live, v.to(tl.float32) - shift, 0.0)
        once += d
        squared += d * d
    total = tl.sum(once, 0)[None, :]
    mean = total / _rows_of(first, programs, rows, ROWS)
    p = parts + first * (2 * C) + c
    tl.store(p, shift + mean, mask=inside)
    tl.store(p + C, tl.sum(squared, 0)[None, :] - total * mean, mask=inside)


@triton.jit
def merge_moments(
    parts, statistics, running_mean, running_var, tracked, programs, rows, momentum,
    C: tl.constexpr, CT: tl.constexpr, PP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """statistics (2, C): mean and variance; the running ones move toward them as torch's do."""
    p = tl.arange(0, PP)[:, None]
    c = tl.program_id(0) * CT + tl.arange(0, CT)
    inside, live = c < C, (p < programs) & (c < C)[None, :]
    at = parts + p * (2 * C) + c[None, :]
    origin = tl.load(parts + c, mask=inside, other=0.0)  # means are added up from the first of them
    off = tl.where(live, tl.load(at, mask=live, other=0.0) - origin[None, :], 0.0)
    n = tl.where(p < programs, _rows_of(p, programs, rows, ROWS), 0).to(tl.float32)
    moved = tl.sum(n * off, 0) / rows
    e = off - moved[None, :]
    m2 = tl.sum(tl.load(at + C, mask=live, other=0.0) + n * e * e, 0)
    tl.store(statistics + c, origin + moved, mask=inside)
    tl.store(statistics + C + c, m2 / rows, mask=inside)
    for_mean = tl.load(running_mean + c, mask=inside, other=0.0).to(tl.float32)
    for_var = tl.load(running_var + c, mask=inside, other=0.0).to(tl.float32)
    for_mean += momentum * (origin + moved - for_mean)
    for_var += momentum * (m2 / tl.maximum(rows - 1, 1) - for_var)
    tl.store(running_mean + c, for_mean.to(running_mean.dtype.element_ty), mask=inside)
    tl.store(running_var + c, for_var.to(running_var.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def normalise(
    x, residual, y, statistics, weight, bias, rows, eps, C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """A tile to a program, from the last one on: `moments` has just read it, and the cache still holds it."""
    at, live = _tile(tl.num_programs(0) - 1 - tl.program_id(0), rows, C, CP, ROWS)
    v = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    mean, rstd, w, b = _of_channel(statistics, weight, bias, eps, C, CP)
    v = (v - mean) * (rstd * w) + b
    if RESIDUAL:
        v += tl.load(residual + at, mask=live, other=0.0).to(tl.float32)
    if RELU:
        v = tl.where(v < 0, 0.0, v)  # NaN stays NaN
    tl.store(y + at, v.to(y.dtype.element_ty), mask=live)


@triton.jit
def gradient_sums(
    g, x, y, gr, parts, statistics, weight, bias, rows, eps, C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """parts (programs, 2, C): of gw and gb, each over a program's tiles. RESIDUAL: gr = h is written, too."""
    first, programs = tl.program_id(0), tl.num_programs(0)
    at, live = _tile(first, rows, C, CP, ROWS)
    next_g = tl.load(g + at, mask=live, other=0.0)
    next_x = tl.load(x + at, mask=live, other=0.0)
    mean, rstd, w, b = _of_channel(statistics, weight, bias, eps, C, CP)
    for_bias = tl.full((ROWS, CP), 0.0, tl.float32)
    for_weight = for_bias
    for t in range(first, tl.cdiv(rows, ROWS), programs):
        h, v = next_g.to(tl.float32), next_x.to(tl.float32) - mean
        at, live = _tile(t + programs, rows, C, CP, ROWS)
        next_g = tl.load(g + at, mask=live, other=0.0)
        next_x = tl.load(x + at, mask=live, other=0.0)
        if RESIDUAL:
            here, live = _tile(t, rows, C, CP, ROWS)
            h = tl.where(tl.load(y + here, mask=live, other=0.0) > 0, h, 0.0)
            tl.store(gr + here, h.to(gr.dtype.element_ty), mask=live)
        elif RELU:
            h = tl.where(v * (rstd * w) + b > 0, h, 0.0)
        for_bias += h
        for_weight += h * v
    c, inside = _channels(C, CP)
    p = parts + first * (2 * C) + c
    tl.store(p, tl.sum(for_weight, 0)[None, :] * rstd, mask=inside)
    tl.store(p + C, tl.sum(for_bias, 0)[None, :], mask=inside)


@triton.jit
def sum_gradients(parts, sums, gw, gb, programs, C: tl.constexpr, CT: tl.constexpr, PP: tl.constexpr):
    """sums (2, C) over programs, and the same as gw and gb in their dtype."""
    p = tl.arange(0, PP)[:, None]
    c = tl.program_id(0) * CT + tl.arange(0, CT)
    inside, live = c < C, (p < programs) & (c < C)[None, :]
    at = parts + p * (2 * C) + c[None, :]
    for_weight = tl.sum(tl.load(at, mask=live, other=0.0), 0)
    for_bias = tl.sum(tl.load(at + C, mask=live, other=0.0), 0)
    tl.store(sums + c, for_weight, mask=inside)
    tl.store(sums + C + c, for_bias, mask=inside)
    tl.store(gw + c, for_weight.to(gw.dtype.element_ty), mask=inside)
    tl.store(gb + c, for_bias.to(gb.dtype.element_ty), mask=inside)


@triton.jit
def gradient(
    g, x, gx, sums, statistics, weight, bias, rows, eps, C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr,
    RELU: tl.constexpr,
):  # fmt: skip
    """gx, a tile to a program from the last one on. RELU: g is that of y, else h."""
    at, live = _tile(tl.num_programs(0) - 1 - tl.program_id(0), rows, C, CP, ROWS)
    h = tl.load(g + at, mask=live, other=0.0).to(tl.float32)
    v = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    mean, rstd, w, b = _of_channel(statistics, weight, bias, eps, C, CP)
    c, inside = _channels(C, CP)
    for_weight = tl.load(sums + c, mask=inside, other=0.0) / rows
    for_bias = tl.load(sums + C + c, mask=inside, other=0.0) / rows
    v -= mean
    if RELU:
        h = tl.where(v * (rstd * w) + b > 0, h, 0.0)
    h = (rstd * w) * (h - for_bias - v * (rstd * for_weight))
    tl.store(gx + at, h.to(gx.dtype.element_ty), mask=live)
