r"""Triton kernels of `attend` that go from children to parents: couplings, and the gradient of poses.

Votes only ever exist as factors. With v_ij = u_i W_ij every use of a vote is a product with the tile of poses u:

    y_ij = q_j W_ij^T      a_ij = l_ij + u_i . y_ij      c_ij = exp(a_ij - lse_i),     lse_i = log sum_j exp a_ij
    z_ij = gs_j W_ij^T     gc_ij = u_i . z_ij            ga_ij = c_ij (gc_ij - delta_i),  delta_i = sum_j c_ij gc_ij
    gu_i = sum_j c_ij z_ij + ga_ij y_ij

Here the tile stays in registers while the parents stream past. It is BT examples x IC children: to the matrix units
rows (b, c) and columns (k, i), so that a sum over the pose's columns k stays inside a thread and each exponential is
taken once. CP, DP, HP are C, d, h rounded up to what the units take. Loads outside a tensor are zero. Couplings c and
their gradients ga of a block of children, begin ... end, go to `_attend_sums` as (J, B, end - begin), times MEND.
DETACH: poses and weights get no gradient through the agreement.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _poses(u, b, i, B, end, G: tl.constexpr, C: tl.constexpr, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr):
    """u (B, G, C, d) -> (BT, CP, DP, IC), and its addresses and mask as (BT, IC, CP, DP)."""
    c = tl.arange(0, CP)[None, None, :, None]
    k = tl.arange(0, DP)[None, None, None, :]
    at = ((b[:, None, None, None] * G + i[None, :, None, None]) * C + c) * D + k
    inside = (b[:, None, None, None] < B) & (i[None, :, None, None] < end)
    if CP != C:
        inside = inside & (c < C)
    if DP != D:
        inside = inside & (k < D)
    x = tl.load(u + at, inside, 0.0).to(tl.float32)
    return tl.permute(x, (0, 2, 3, 1)), at, inside


@triton.jit
def _parent_at(b, j, B, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr, HP: tl.constexpr):
    """Addresses of parent j in (B, J, C, h), as (BT * CP, HP), and their mask."""
    h = tl.arange(0, HP)[None, :]
    c = tl.arange(0, CP)[None, :]
    row = tl.reshape((b[:, None] * J + j) * C + c, (b.shape[0] * CP,))
    inside = tl.reshape((b[:, None] < B) & (c < C), (b.shape[0] * CP,))[:, None]
    if HP != H:
        inside = inside & (h < H)
    return row[:, None] * H + h, inside


@triton.jit
def _weight_at(i, j, end, G: tl.constexpr, D: tl.constexpr, H: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr):
    """Addresses of W_j in (J, d, G, h), as (DP * IC, HP), and their mask."""
    h = tl.arange(0, HP)[None, :]
    k = tl.arange(0, DP)[:, None]
    row = tl.reshape((j * D + k) * G + i[None, :], (DP * i.shape[0],))
    inside = tl.reshape((k < D) & (i[None, :] < end), (DP * i.shape[0],))[:, None]
    if HP != H:
        inside = inside & (h < H)
    return row[:, None] * H + h, inside


@triton.jit
def _dot_poses(x, y, MEND: tl.constexpr):
    """sum over a pose of x y, both (BT, CP, DP, IC) -> (BT, IC)."""
    return tl.sum(tl.sum(x * y, 2), 1) * MEND


@triton.jit
def _times_weight(p, w_j, BT: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, IC: tl.constexpr, PREC: tl.constexpr):
    """p_j W_ij^T of a parent's tile p (BT * CP, HP) -> (BT, CP, DP, IC)."""
    return tl.reshape(tl.dot(p, tl.trans(w_j), input_precision=PREC), (BT, CP, DP, IC))


@triton.jit
def couplings(
    u, w, q, l, lse, c, B, begin, end,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, LEAKY: tl.constexpr, PRECISION: tl.constexpr, MEND: tl.constexpr,
):  # fmt: skip
    """lse_i = log sum_j exp a_ij (+ 1 when leaky) -> (B, G), and c. Program: a tile, all its parents."""
    b = tl.program_id(0) * BT + tl.arange(0, BT)
    i = begin + tl.program_id(1) * IC + tl.arange(0, IC)
    x, _, _ = _poses(u, b, i, B, end, G, C, D, CP, DP)
    c_at, c_in = b[:, None] * (end - begin) + (i - begin)[None, :], (b[:, None] < B) & (i[None, :] < end)
    size = B * (end - begin)
    top = tl.full((BT, IC), 0.0 if LEAKY else -3.0e38, tl.float32)
    total = tl.full((BT, IC), 1.0 if LEAKY else 0.0, tl.float32)
    for j in range(J):
        a = tl.zeros((BT, IC), tl.float32)
        if QUERY:
            w_at, w_in = _weight_at(i, j, end, G, D, H, DP, HP)
            p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
            w_j = tl.load(w + w_at, w_in, 0.0)
            y = _times_weight(tl.load(q + p_at, p_in, 0.0), w_j, BT, CP, DP, IC, PRECISION)
            a = _dot_poses(x, y, MEND)
        if LOGITS:
            a += tl.load(l + i * J + j, i < end, 0.0)[None, :]
        tl.store(c + j * size + c_at, a, c_in)
        higher = tl.maximum(top, a)
        total = total * tl.exp(top - higher) + tl.exp(a - higher)
        top = higher
    lse_i = top + tl.log(total)
    tl.store(lse + b[:, None] * G + i[None, :], lse_i, c_in)
    tl.debug_barrier()  # what is loaded now, other threads may have stored
    for j in range(J):
        tl.store(c + j * size + c_at, tl.exp(tl.load(c + j * size + c_at, c_in, 0.0) - lse_i) * MEND, c_in)


@triton.jit
def pose_gradient(
    gs, u, w, q, l, lse, gu, c, ga, B, begin, end, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, DETACH: tl.constexpr, PRECISION: tl.constexpr, MEND: tl.constexpr,
):  # fmt: skip
    """gu (B, G, C, d), added to what is there if `again`, c and ga. Program: a tile, all its parents once:

    gu_i = sum_j c_ij (z_ij + gc_ij y_ij) - delta_i sum_j c_ij y_ij
    """
    b = tl.program_id(0) * BT + tl.arange(0, BT)
    i = begin + tl.program_id(1) * IC + tl.arange(0, IC)
    x, u_at, u_in = _poses(u, b, i, B, end, G, C, D, CP, DP)
    c_at, c_in = b[:, None] * (end - begin) + (i - begin)[None, :], (b[:, None] < B) & (i[None, :] < end)
    size = B * (end - begin)
    lse_i = tl.load(lse + b[:, None] * G + i[None, :], c_in, float("inf"))
    grad = tl.zeros((BT, CP, DP, IC), tl.float32)
    mean_y = tl.zeros((BT, CP, DP, IC), tl.float32)
    delta_i = tl.zeros((BT, IC), tl.float32)
    for j in range(J):
        w_at, w_in = _weight_at(i, j, end, G, D, H, DP, HP)
        p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
        w_j = tl.load(w + w_at, w_in, 0.0)
        z = _times_weight(tl.load(gs + p_at, p_in, 0.0), w_j, BT, CP, DP, IC, PRECISION)
        a = tl.zeros((BT, IC), tl.float32)
        if LOGITS:
            a += tl.load(l + i * J + j, i < end, 0.0)[None, :]
        gc = _dot_poses(x, z, MEND)
        if QUERY:
            y = _times_weight(tl.load(q + p_at, p_in, 0.0), w_j, BT, CP, DP, IC, PRECISION)
            a += _dot_poses(x, y, MEND)
        c_j = tl.exp(a - lse_i)
        grad += z * c_j[:, None, None, :]
        if QUERY and not DETACH:
            grad += y * (c_j * gc)[:, None, None, :]
            mean_y += y * c_j[:, None, None, :]
        delta_i += c_j * gc
        tl.store(c + j * size + c_at, c_j * MEND, c_in)
        tl.store(ga + j * size + c_at, gc, c_in)
    if QUERY and not DETACH:
        grad -= mean_y * delta_i[:, None, None, :]
    out = tl.permute(grad * MEND, (0, 3, 1, 2)) + tl.load(gu + u_at, u_in & (again > 0), 0.0)
    tl.store(gu + u_at, out.to(gu.dtype.element_ty), u_in)
    tl.debug_barrier()  # what is loaded now, other threads may have stored
    for j in range(J):
        gc = tl.load(ga + j * size + c_at, c_in, 0.0)
        tl.store(ga + j * size + c_at, tl.load(c + j * size + c_at, c_in, 0.0) * (gc - delta_i), c_in)
