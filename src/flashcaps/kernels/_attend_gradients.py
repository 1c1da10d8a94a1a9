r"""The backward kernels of `attend`: what forward makes of q, backward makes of gs, too.

    y_ij = q_j W_ij^T      z_ij = gs_j W_ij^T      gc_ij = u_i . z_ij      delta_i = sum_j c_ij gc_ij
    ga_ij = c_ij (gc_ij - delta_i)                        gl_ij = sum_b ga_ij
    gu_i = sum_j c_ij z_ij + ga_ij y_ij                   gq_j = sum_i (ga_ij u_i) W_ij
    gW_ij = sum_b (c_ij u_i)^T gs_j + (ga_ij u_i)^T q_j

Each gradient has a kernel of its own, which computes y, z and c afresh and keeps its sum in registers: one for what
is summed over parents, one over children, one over examples. DETACH: no gradient through the agreement to u and W.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._attend_tiles import dot_poses, logits_at, order, parents_at, poses, swapped, weights_at


@triton.jit
def pose_gradient(
    gs, u, w, q, l, lse, gu, delta, B, share, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, P: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, DETACH: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """gu (B, G, C, d), added to what is there if `again`, and delta (B, G). Program: a tile, all its parents once:

    gu_i = sum_j c_ij (z_ij + gc_ij y_ij) - delta_i sum_j c_ij y_ij
    """
    b = tl.program_id(1) * BT + tl.arange(0, BT)
    i = tl.program_id(0) * IC + tl.arange(0, IC)
    x, u_at, u_in = poses(u, b, i, B, IC, G, C, D, CP, DP)
    x = tl.permute(x, (2, 0, 3, 1))[None]
    child_at, child_in = b[:, None] * G + i[None, :], (b[:, None] < B) & (i[None, :] < G)
    if QUERY or LOGITS:
        lse_i = tl.load(lse + child_at, child_in, float("inf"))[None]
    products = tl.zeros((P, CP * BT, DP * IC), tl.float32)
    grad = tl.zeros((P, CP, BT, DP, IC), tl.float32)
    mean_y = tl.zeros((P, CP, BT, DP, IC), tl.float32)
    delta_i = tl.zeros((P, BT, IC), tl.float32)
    for group in tl.range(0, J, P, num_stages=STAGES):
        j = group + tl.arange(0, P)
        w_at, w_in = weights_at(tl.program_id(0) * IC, tl.arange(0, DP * IC), j, IC, G, J, D, H, DP, HP)
        p_at, p_in = parents_at(tl.program_id(1) * BT, tl.arange(0, CP * BT), j, B, BT, J, C, H, CP, HP)
        w_j = tl.permute(tl.load(w + w_at, w_in, 0.0), (0, 2, 1))
        gs_j = tl.load(gs + p_at, p_in, 0.0)
        if QUERY or LOGITS:
            z = tl.reshape(tl.dot(gs_j, w_j, input_precision=PRECISION), (P, CP, BT, DP, IC))
            gc = dot_poses(x, z)
            a = tl.zeros((P, BT, IC), tl.float32)
            if LOGITS:
                l_at, l_in = logits_at(i, j, G, J)
                a += tl.load(l + l_at, l_in, 0.0)[:, None, :]
            if QUERY:
                y = tl.dot(tl.load(q + p_at, p_in, 0.0), w_j, input_precision=PRECISION)
                y = tl.reshape(y, (P, CP, BT, DP, IC))
                a += dot_poses(x, y)
            c = tl.exp(a - lse_i)
            grad += z * c[:, None, :, None, :]
            if QUERY and not DETACH:
                grad += y * (c * gc)[:, None, :, None, :]
                mean_y += y * c[:, None, :, None, :]
            delta_i += c * gc
        else:
            products = tl.dot(gs_j, w_j, products, input_precision=PRECISION)
    if QUERY or LOGITS:
        out = tl.sum(grad, 0)
        delta_b = tl.sum(delta_i, 0)
        tl.store(delta + child_at, delta_b, child_in)
        if QUERY and not DETACH:
            out -= tl.sum(mean_y, 0) * delta_b[None, :, None, :]
    else:
        out = tl.sum(tl.reshape(products, (P, CP, BT, DP, IC)), 0) * share
    out = tl.permute(out, (1, 3, 0, 2)) + tl.load(gu + u_at, u_in & (again > 0), 0.0)
    tl.store(gu + u_at, out.to(gu.dtype.element_ty), u_in)


@triton.jit
def query_gradient(
    gs, u, w, q, l, lse, delta, gq, B, tiles,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, P: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Partial gq_j of `tiles` tiles of children -> (chunks, B, J, C, h)."""
    R: tl.constexpr = CP * BT
    N: tl.constexpr = DP * IC
    SWAP: tl.constexpr = w.dtype.element_ty == tl.float32 and N % 8 == 0
    j = tl.program_id(0) * P + tl.arange(0, P)
    b = tl.program_id(1) * BT + tl.arange(0, BT)
    first = tl.program_id(2) * tiles
    last = tl.minimum(first + tiles, tl.cdiv(G, IC))
    p_at, p_in = parents_at(tl.program_id(1) * BT, tl.arange(0, R), j, B, BT, J, C, H, CP, HP)
    q_j = tl.load(q + p_at, p_in, 0.0)
    gs_j = tl.load(gs + p_at, p_in, 0.0)
    total = tl.zeros((P, R, HP), tl.float32)
    for t in tl.range(first, last, num_stages=STAGES):
        i = t * IC + tl.arange(0, IC)
        x = tl.permute(poses(u, b, i, B, IC, G, C, D, CP, DP)[0], (2, 0, 3, 1))[None]
        inside = (b[:, None] < B) & (i[None, :] < G)
        lse_i = tl.load(lse + b[:, None] * G + i[None, :], inside, float("inf"))
        delta_i = tl.load(delta + b[:, None] * G + i[None, :], inside, 0.0)
        w_at, w_in = weights_at(t * IC, order(N, SWAP), j, IC, G, J, D, H, DP, HP)
        ordered_w = tl.load(w + w_at, w_in, 0.0)
        w_at, w_in = weights_at(t * IC, tl.arange(0, N), j, IC, G, J, D, H, DP, HP)
        w_j = tl.permute(tl.load(w + w_at, w_in, 0.0), (0, 2, 1))
        a = dot_poses(x, tl.reshape(tl.dot(q_j, w_j, input_precision=PRECISION), (P, CP, BT, DP, IC)))
        if LOGITS:
            l_at, l_in = logits_at(i, j, G, J)
            a += tl.load(l + l_at, l_in, 0.0)[:, None, :]
        gc = dot_poses(x, tl.reshape(tl.dot(gs_j, w_j, input_precision=PRECISION), (P, CP, BT, DP, IC)))
        moved = x * (tl.exp(a - lse_i[None]) * (gc - delta_i[None]))[:, None, :, None, :]
        moved = swapped(tl.reshape(moved, (P, R, N)), SWAP).to(w.dtype.element_ty)
        total = tl.dot(moved, ordered_w, total, input_precision=PRECISION)
    gq += tl.program_id(2).to(tl.int64) * B * J * (C * H)
    tl.store(gq + p_at, total, p_in)


@triton.jit
def weight_gradient(
    gs, u, w, q, l, lse, delta, gw, gl, B, tiles, share, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, P: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, DETACH: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Partial gW_j (chunks, J, d, G, h) and gl (chunks, G, J) of `tiles` tiles of examples, added to what is there if
    `again`. Here a product's rows are (k, i), its columns (c, b).
    """
    R: tl.constexpr = CP * BT
    N: tl.constexpr = DP * IC
    SWAP: tl.constexpr = w.dtype.element_ty == tl.float32 and R % 8 == 0
    MOVED: tl.constexpr = QUERY and not DETACH
    j = tl.program_id(0) * P + tl.arange(0, P)
    i = tl.program_id(1) * IC + tl.arange(0, IC)
    w_at, w_in = weights_at(tl.program_id(1) * IC, tl.arange(0, N), j, IC, G, J, D, H, DP, HP)
    gw += tl.program_id(2).to(tl.int64) * J * G * (D * H)
    total = tl.load(gw + w_at, w_in & (again > 0), 0.0)
    if QUERY or LOGITS:
        w_j = tl.load(w + w_at, w_in, 0.0)
    if LOGITS:
        l_at, l_in = logits_at(i, j, G, J)
        l_j = tl.load(l + l_at, l_in, 0.0)[:, :, None]
        gl_j = tl.zeros((P, IC, BT), tl.float32)
    first = tl.program_id(2) * tiles
    last = tl.minimum(first + tiles, tl.cdiv(B, BT))
    for t in tl.range(first, last, num_stages=STAGES):
        b = t * BT + tl.arange(0, BT)
        x = tl.permute(poses(u, b, i, B, IC, G, C, D, CP, DP)[0], (3, 1, 2, 0))[None]
        o_at, o_in = parents_at(t * BT, order(R, SWAP), j, B, BT, J, C, H, CP, HP)
        p_at, p_in = parents_at(t * BT, tl.arange(0, R), j, B, BT, J, C, H, CP, HP)
        ordered_gs = tl.load(gs + o_at, o_in, 0.0)
        if QUERY or LOGITS:
            child_at, child_in = b[None, :] * G + i[:, None], (b[None, :] < B) & (i[:, None] < G)
            lse_i = tl.load(lse + child_at, child_in, float("inf"))
            a = tl.zeros((P, IC, BT), tl.float32)
            if QUERY:
                q_j = tl.permute(tl.load(q + p_at, p_in, 0.0), (0, 2, 1))
                a = dot_poses(x, tl.reshape(tl.dot(w_j, q_j, input_precision=PRECISION), (P, DP, IC, CP, BT)))
            if LOGITS:
                a += l_j
            c = tl.exp(a - lse_i[None])
            if MOVED or LOGITS:
                gs_j = tl.permute(tl.load(gs + p_at, p_in, 0.0), (0, 2, 1))
                gc = dot_poses(x, tl.reshape(tl.dot(w_j, gs_j, input_precision=PRECISION), (P, DP, IC, CP, BT)))
                ga = c * (gc - tl.load(delta + child_at, child_in, 0.0)[None])
                if LOGITS:
                    gl_j += ga
                if MOVED:
                    moved = swapped(tl.reshape(x * ga[:, None, :, None, :], (P, N, R)), SWAP).to(w.dtype.element_ty)
                    total = tl.dot(moved, tl.load(q + o_at, o_in, 0.0), total, input_precision=PRECISION)
            coupled = x * c[:, None, :, None, :]
        else:
            coupled = tl.broadcast_to(x * share, (P, DP, IC, CP, BT))
        coupled = swapped(tl.reshape(coupled, (P, N, R)), SWAP).to(w.dtype.element_ty)
        total = tl.dot(coupled, ordered_gs, total, input_precision=PRECISION)
    tl.store(gw + w_at, total, w_in)
    if LOGITS:
        gl += tl.program_id(2).to(tl.int64) * G * J + l_at
        tl.store(gl, tl.sum(gl_j, 2) + tl.load(gl, l_in & (again > 0), 0.0), l_in)
