r"""Triton kernels of `attend` whose sums stay in registers: over children for parents, over examples for weights.

    s_j = sum_i (c_ij u_i) W_ij       gq_j = sum_i (ga_ij u_i) W_ij
    gW_ij = sum_b (c_ij u_i)^T gs_j + (ga_ij u_i)^T q_j

Matrix products of poses that are scaled as they are loaded: rows (b, c), columns n = (i, k). A program takes P parents
for the poses it loads. c and ga are of a block of children, begin ... end, (J, B, end - begin).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _poses(
    u, b, i, B, end,
    G: tl.constexpr, C: tl.constexpr, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """u (B, G, C, d) -> (BT, CP, IC, DP)."""
    c = tl.arange(0, CP)[None, :, None, None]
    k = tl.arange(0, DP)[None, None, None, :]
    at = ((b[:, None, None, None] * G + i[None, None, :, None]) * C + c) * D + k
    inside = (b[:, None, None, None] < B) & (i[None, None, :, None] < end)
    if CP != C:
        inside = inside & (c < C)
    if DP != D:
        inside = inside & (k < D)
    return tl.load(u + at, inside, 0.0).to(tl.float32)


@triton.jit
def _parent_at(b, j, B, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr, HP: tl.constexpr):
    """Addresses of parent j in (B, J, C, h), as (BT * CP, HP), and their mask."""
    h = tl.arange(0, HP)[None, :]
    c = tl.arange(0, CP)[None, :]
    row = tl.reshape((b[:, None] * J + j) * C + c, (b.shape[0] * CP,))
    inside = tl.reshape((b[:, None] < B) & (c < C) & (j < J), (b.shape[0] * CP,))[:, None]
    if HP != H:
        inside = inside & (h < H)
    return row[:, None] * H + h, inside


@triton.jit
def _weight_at(i, j, end, G: tl.constexpr, J: tl.constexpr, D: tl.constexpr, H: tl.constexpr, DP: tl.constexpr,
               HP: tl.constexpr):  # fmt: skip
    """Addresses of W_j in (J, d, G, h), as (IC * DP, HP), and their mask."""
    h = tl.arange(0, HP)[None, :]
    k = tl.arange(0, DP)[None, :]
    row = tl.reshape((j * D + k) * G + i[:, None], (i.shape[0] * DP,))
    inside = tl.reshape((k < D) & (i[:, None] < end) & (j < J), (i.shape[0] * DP,))[:, None]
    if HP != H:
        inside = inside & (h < H)
    return row[:, None] * H + h, inside


@triton.jit
def coupled_sum(
    u, w, c, s, B, begin, end, tiles,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, P: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Partial s_j = sum_i (c_ij u_i) W_ij of `tiles` tiles of children -> (chunks, B, J, C, h)."""
    first = tl.program_id(0) * P
    b = tl.program_id(1) * BT + tl.arange(0, BT)
    start = begin + tl.program_id(2) * tiles * IC
    size = B * (end - begin)
    sums = (tl.zeros((BT * CP, HP), tl.float32),) * P
    for at in tl.range(start, tl.minimum(start + tiles * IC, end), IC, num_stages=STAGES):
        i = at + tl.arange(0, IC)
        x = _poses(u, b, i, B, end, G, C, D, CP, DP)
        c_at, c_in = b[:, None] * (end - begin) + (i - begin)[None, :], (b[:, None] < B) & (i[None, :] < end)
        more = ()
        for p in tl.static_range(P):
            j = first + p
            c_j = tl.load(c + j * size + c_at, c_in & (j < J), 0.0)
            coupled = tl.reshape(x * c_j[:, None, :, None], (BT * CP, IC * DP)).to(w.dtype.element_ty)
            w_at, w_in = _weight_at(i, j, end, G, J, D, H, DP, HP)
            more = more + (tl.dot(coupled, tl.load(w + w_at, w_in, 0.0), sums[p], input_precision=PRECISION),)
        sums = more
    s += tl.program_id(2).to(tl.int64) * B * J * (C * H)
    for p in tl.static_range(P):
        p_at, p_in = _parent_at(b, first + p, B, J, C, H, CP, HP)
        tl.store(s + p_at, sums[p], p_in)


@triton.jit
def weight_gradient(
    gs, u, q, c, ga, gw, B, begin, end, tiles, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, P: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    MOVED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Partial gW_j of `tiles` tiles of examples -> (chunks, J, d, G, h), added to what is there if `again`.

    MOVED: with the gradient through the agreement.
    """
    first = tl.program_id(0) * P
    i = begin + tl.program_id(1) * IC + tl.arange(0, IC)
    start = tl.program_id(2) * tiles * BT
    size = B * (end - begin)
    sums = (tl.zeros((IC * DP, HP), tl.float32),) * P
    for at in tl.range(start, tl.minimum(start + tiles * BT, B), BT, num_stages=STAGES):
        b = at + tl.arange(0, BT)
        x = _poses(u, b, i, B, end, G, C, D, CP, DP)
        c_at, c_in = b[:, None] * (end - begin) + (i - begin)[None, :], (b[:, None] < B) & (i[None, :] < end)
        more = ()
        for p in tl.static_range(P):
            j = first + p
            p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
            c_j = tl.load(c + j * size + c_at, c_in & (j < J), 0.0)
            coupled = tl.reshape(x * c_j[:, None, :, None], (BT * CP, IC * DP)).to(gs.dtype.element_ty)
            total = tl.dot(tl.trans(coupled), tl.load(gs + p_at, p_in, 0.0), sums[p], input_precision=PRECISION)
            if MOVED:
                ga_j = tl.load(ga + j * size + c_at, c_in & (j < J), 0.0)
                moved = tl.reshape(x * ga_j[:, None, :, None], (BT * CP, IC * DP)).to(gs.dtype.element_ty)
                total = tl.dot(tl.trans(moved), tl.load(q + p_at, p_in, 0.0), total, input_precision=PRECISION)
            more = more + (total,)
        sums = more
    gw += tl.program_id(2).to(tl.int64) * J * G * (D * H)
    for p in tl.static_range(P):
        w_at, w_in = _weight_at(i, first + p, end, G, J, D, H, DP, HP)
        tl.store(gw + w_at, sums[p] + tl.load(gw + w_at, w_in & (again > 0), 0.0), w_in)
