r"""The forward kernels of `attend` (`_attend_tiles` says how they are laid out), and those around the squash.

    a_ij = l_ij + u_i . (q_j W_ij^T)      lse_i = log sum_j exp a_ij      s_j = sum_i (exp(a_ij - lse_i) u_i) W_ij
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._attend_tiles import dot_poses, logits_at, order, parents_at, poses, swapped, weights_at


@triton.jit
def log_sum_exp(
    u, w, q, l, lse, B,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, P: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, LEAKY: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """lse_i = log sum_j exp a_ij (+ 1 when leaky) -> (B, G). Program: a tile, all its parents."""
    b = tl.program_id(1) * BT + tl.arange(0, BT)
    i = tl.program_id(0) * IC + tl.arange(0, IC)
    x = tl.permute(poses(u, b, i, B, IC, G, C, D, CP, DP)[0], (2, 0, 3, 1))[None]
    top = tl.full((P, BT, IC), -3.0e38, tl.float32)
    total = tl.zeros((P, BT, IC), tl.float32)
    for group in tl.range(0, J, P, num_stages=STAGES):
        j = group + tl.arange(0, P)
        a = tl.zeros((P, BT, IC), tl.float32)
        if QUERY:
            w_at, w_in = weights_at(tl.program_id(0) * IC, tl.arange(0, DP * IC), j, IC, G, J, D, H, DP, HP)
            p_at, p_in = parents_at(tl.program_id(1) * BT, tl.arange(0, CP * BT), j, B, BT, J, C, H, CP, HP)
            w_j = tl.permute(tl.load(w + w_at, w_in, 0.0), (0, 2, 1))
            y = tl.dot(tl.load(q + p_at, p_in, 0.0), w_j, input_precision=PRECISION)
            a = dot_poses(x, tl.reshape(y, (P, CP, BT, DP, IC)))
        if LOGITS:
            l_at, l_in = logits_at(i, j, G, J)
            a += tl.load(l + l_at, l_in, 0.0)[:, None, :]
        if J % P != 0:
            a = tl.where((j < J)[:, None, None], a, float("-inf"))
        higher = tl.maximum(top, a)
        total = total * tl.exp(top - higher) + tl.exp(a - higher)
        top = higher
    highest = tl.max(top, 0)
    if LEAKY:
        highest = tl.maximum(highest, 0.0)
    total = tl.sum(total * tl.exp(top - highest[None]), 0)
    if LEAKY:
        total += tl.exp(-highest)
    tl.store(lse + b[:, None] * G + i[None, :], highest + tl.log(total), (b[:, None] < B) & (i[None, :] < G))


@triton.jit
def weighted_sum(
    u, w, q, l, lse, s, B, tiles, share,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, P: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Partial s_j of `tiles` tiles of children -> (chunks, B, J, C, h). Without query and logits c_ij is `share`."""
    R: tl.constexpr = CP * BT
    N: tl.constexpr = DP * IC
    SWAP: tl.constexpr = w.dtype.element_ty == tl.float32 and N % 8 == 0
    j = tl.program_id(0) * P + tl.arange(0, P)
    b = tl.program_id(1) * BT + tl.arange(0, BT)
    first = tl.program_id(2) * tiles
    last = tl.minimum(first + tiles, tl.cdiv(G, IC))
    p_at, p_in = parents_at(tl.program_id(1) * BT, tl.arange(0, R), j, B, BT, J, C, H, CP, HP)
    if QUERY:
        q_j = tl.load(q + p_at, p_in, 0.0)
    total = tl.zeros((P, R, HP), tl.float32)
    for t in tl.range(first, last, num_stages=STAGES):
        i = t * IC + tl.arange(0, IC)
        x = tl.permute(poses(u, b, i, B, IC, G, C, D, CP, DP)[0], (2, 0, 3, 1))[None]
        w_at, w_in = weights_at(t * IC, order(N, SWAP), j, IC, G, J, D, H, DP, HP)
        ordered_w = tl.load(w + w_at, w_in, 0.0)
        if QUERY or LOGITS:
            inside = (b[:, None] < B) & (i[None, :] < G)
            lse_i = tl.load(lse + b[:, None] * G + i[None, :], inside, float("inf"))
            a = tl.zeros((P, BT, IC), tl.float32)
            if QUERY:
                w_at, w_in = weights_at(t * IC, tl.arange(0, N), j, IC, G, J, D, H, DP, HP)
                w_j = tl.permute(tl.load(w + w_at, w_in, 0.0), (0, 2, 1))
                y = tl.dot(q_j, w_j, input_precision=PRECISION)
                a = dot_poses(x, tl.reshape(y, (P, CP, BT, DP, IC)))
            if LOGITS:
                l_at, l_in = logits_at(i, j, G, J)
                a += tl.load(l + l_at, l_in, 0.0)[:, None, :]
            coupled = x * tl.exp(a - lse_i[None])[:, None, :, None, :]
        else:
            coupled = tl.broadcast_to(x * share, (P, CP, BT, DP, IC))
        coupled = swapped(tl.reshape(coupled, (P, R, N)), SWAP).to(w.dtype.element_ty)
        total = tl.dot(coupled, ordered_w, total, input_precision=PRECISION)
    s += tl.program_id(2).to(tl.int64) * B * J * (C * H)
    tl.store(s + p_at, total, p_in)


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
        total += tl.sum(tl.load(parts + here, (first + c < chunks) & inside[None], 0.0), 0)
    return total


@triton.jit
def settle(parts, bias, seen, s, v, query, chunks, rows, J, D: tl.constexpr, DP: tl.constexpr, RT: tl.constexpr,
           CT: tl.constexpr, BIAS: tl.constexpr, SEEN: tl.constexpr):  # fmt: skip
    """s = sum of parts + bias, v = s n / (1 + n^2) with n = ||s||, query = seen + v; rows (b, j)."""
    r = (tl.program_id(0) * RT + tl.arange(0, RT))[:, None]
    k = tl.arange(0, DP)[None, :]
    at, inside = r * D + k, (r < rows) & (k < D)
    x = _sum_of_rows(parts, at, inside, chunks, rows * D, CT)
    if BIAS:
        x += tl.load(bias + (r % J) * D + k, inside, 0.0).to(tl.float32)
    n2 = tl.sum(x * x, 1)[:, None]
    pose = x * (tl.sqrt(n2) / (1.0 + n2))
    tl.store(s + at, x, inside)
    tl.store(v + at, pose.to(v.dtype.element_ty), inside)
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
