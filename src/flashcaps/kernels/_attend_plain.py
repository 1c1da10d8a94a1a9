r"""Triton kernels of a step whose couplings are all the same, `share`: three plain matrix products.

    s_j = share sum_i u_i W_ij        gu_i = share sum_j gs_j W_ij^T        gW_ij = share sum_b u_i^T gs_j

In matrices: rows (b, c), columns n = (i, k) of poses and m = (j, h) of parents. A library's product would need a
transposed copy of W or of u first.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _capsules_at(r, n, rows, N: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Addresses in u (B, G, C, d), or in s (B, J, C, h), at rows (b, c) and columns (capsule, element); their mask."""
    inside = (r < rows)[:, None] & (n < N * K)[None, :]
    if C == 1:
        return r[:, None] * (N * K) + n[None, :], inside
    return (r // C * (N * C * K) + r % C * K)[:, None] + (n // K * (C * K) + n % K)[None, :], inside


@triton.jit
def _weights_at(n, m, G: tl.constexpr, J: tl.constexpr, D: tl.constexpr, H: tl.constexpr):
    """Addresses in W (J, d, G, h) at rows n and columns m, and their mask, (N, M)."""
    row = n % D * G + n // D
    at = row[:, None] * H + (m // H * (D * G * H) + m % H)[None, :]
    return at, (n < G * D)[:, None] & (m < J * H)[None, :]


@triton.jit
def plain_sum(
    u, w, s, rows, tiles, share,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Partial s of `tiles` tiles of columns n -> (chunks, B, J, C, h)."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    r = tl.program_id(1) * R + tl.arange(0, R)
    first = tl.program_id(2) * tiles
    total = tl.zeros((R, M), tl.float32)
    for t in tl.range(first, tl.minimum(first + tiles, tl.cdiv(G * D, N)), num_stages=STAGES):
        n = t * N + tl.arange(0, N)
        u_at, u_in = _capsules_at(r, n, rows, G, C, D)
        w_at, w_in = _weights_at(n, m, G, J, D, H)
        x = tl.load(u + u_at, u_in, 0.0)
        total = tl.dot(x, tl.load(w + w_at, w_in, 0.0), total, input_precision=PRECISION)
    p_at, p_in = _capsules_at(r, m, rows, J, C, H)
    tl.store(s + tl.program_id(2).to(tl.int64) * rows * (J * H) + p_at, total * share, p_in)


@triton.jit
def plain_pose_gradient(
    gs, w, gu, rows, share, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """gu, added to what is there if `again`."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    r = tl.program_id(1) * R + tl.arange(0, R)
    total = tl.zeros((R, N), tl.float32)
    for t in tl.range(0, tl.cdiv(J * H, M), num_stages=STAGES):
        m = t * M + tl.arange(0, M)
        p_at, p_in = _capsules_at(r, m, rows, J, C, H)
        w_at, w_in = _weights_at(n, m, G, J, D, H)
        w_n = tl.trans(tl.load(w + w_at, w_in, 0.0))
        total = tl.dot(tl.load(gs + p_at, p_in, 0.0), w_n, total, input_precision=PRECISION)
    u_at, u_in = _capsules_at(r, n, rows, G, C, D)
    total = total * share + tl.load(gu + u_at, u_in & (again > 0), 0.0)
    tl.store(gu + u_at, total.to(gu.dtype.element_ty), u_in)


@triton.jit
def plain_weight_gradient(
    gs, u, gw, rows, tiles, share, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Partial gW of `tiles` tiles of rows -> (chunks, J, d, G, h), added to what is there if `again`."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    first = tl.program_id(2) * tiles
    total = tl.zeros((N, M), tl.float32)
    for t in tl.range(first, tl.minimum(first + tiles, tl.cdiv(rows, R)), num_stages=STAGES):
        r = t * R + tl.arange(0, R)
        u_at, u_in = _capsules_at(r, n, rows, G, C, D)
        p_at, p_in = _capsules_at(r, m, rows, J, C, H)
        x = tl.trans(tl.load(u + u_at, u_in, 0.0))
        total = tl.dot(x, tl.load(gs + p_at, p_in, 0.0), total, input_precision=PRECISION)
    w_at, w_in = _weights_at(n, m, G, J, D, H)
    gw += tl.program_id(2).to(tl.int64) * J * G * (D * H)
    tl.store(gw + w_at, total * share + tl.load(gw + w_at, w_in & (again > 0), 0.0), w_in)
