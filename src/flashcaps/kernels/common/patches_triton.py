"""Triton kernels of patches: a program copies poses to one output place, or sums the gradients of one input place.

Other kernels read patches where they lie in the image: child i of place b is at `place_at(b) + child_at(i)`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_at(b, OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr):
    """Address of place b = (example, row, column of the output) in an image: that of its patch's corner."""
    at = b * SB
    if OH * OW > 1:
        p = b.to(tl.int32)  # divided in 32 bits, which is far less work; addresses have 64
        at = (p // (OH * OW)).to(tl.int64) * SB + (p // OW % OH * PY + p % OW * PX)
    return at


@triton.jit
def child_at(i, K: tl.constexpr, ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr):
    """Address of child i = (type, row, column of the kernel) from its patch's corner."""
    if K == 1:
        return i * ST
    return i // (K * K) * ST + i // K % K * SY + i % K * SX


@triton.jit
def gather(
    u, out, T, OH, OW, sb, st, sh, sw, sd, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """out (B, H', W', T, k, k, D)"""
    place = tl.program_id(0).to(tl.int64)  # (b, y, x)
    y, x = place // OW % OH * STRIDE, place % OW * STRIDE
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]  # (t, row of the kernel, column)
    d = tl.arange(0, DP)[None, :]
    t, ky, kx = row // (KERNEL * KERNEL), row // KERNEL % KERNEL, row % KERNEL
    live = (t < T) & (d < D)
    corner = u + place // (OH * OW) * sb + y * sh + x * sw
    v = tl.load(corner + t.to(tl.int64) * st + ky * sh + kx * sw + d * sd, mask=live, other=0.0)
    tl.store(out + place * (T * KERNEL * KERNEL * D) + row * D + d, v, mask=live)


@triton.jit
def scatter(
    g, out, T, H, W, OH, OW, sb, st, sh, sw, sd, again, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """out (B, T, H, W, D): the sum over the patches that hold a place, in the order of the kernel, added to what it
    holds if `again`.
    """
    place = tl.program_id(0)  # (b, y, x)
    b, y, x = (place // (H * W)).to(tl.int64), place // W % H, place % W
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, DP)[None, :]
    live = (t < T) & (d < D)
    total = tl.full((ROWS, DP), 0.0, tl.float32)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            oy, ox = y - ky, x - kx
            inside = (oy >= 0) & (ox >= 0) & (oy % STRIDE == 0) & (ox % STRIDE == 0)
            oy, ox = oy // STRIDE, ox // STRIDE
            inside = inside & (oy < OH) & (ox < OW)
            row = ((b * OH + oy) * OW + ox) * T + t
            p = g + (row * (KERNEL * KERNEL) + ky * KERNEL + kx) * D + d
            total += tl.load(p, mask=live & inside, other=0.0).to(tl.float32)
    p = out + b * sb + y * sh + x * sw + t.to(tl.int64) * st + d * sd
    total += tl.load(p, mask=live & (again > 0), other=0.0).to(tl.float32)
    tl.store(p, total.to(out.dtype.element_ty), mask=live)


@triton.jit
def columns(
    x, out, rows, H, W, OH, OW, sb, sc, sh, sw, K: tl.constexpr, WIDTH: tl.constexpr, WP: tl.constexpr,
    ROWS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """out (B H' W', WIDTH): the K numbers (channel, row, column) under the kernel at each place, then ones."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, WP)[None, :]
    b, oy, ox = (row // (OH * OW)).to(tl.int64), row // OW % OH, row % OW
    c, ky, kx = col // (KERNEL * KERNEL), col // KERNEL % KERNEL, col % KERNEL
    y, z = oy * STRIDE + ky - PADDING, ox * STRIDE + kx - PADDING
    inside = (row < rows) & (col < K) & (y >= 0) & (y < H) & (z >= 0) & (z < W)
    v = tl.load(x + b * sb + c * sc + y * sh + z * sw, mask=inside, other=0.0).to(tl.float32)
    v = tl.where(col < K, v, 1.0)
    p = out + row.to(tl.int64) * WIDTH + col
    tl.store(p, v.to(out.dtype.element_ty), mask=(row < rows) & (col < WIDTH))
