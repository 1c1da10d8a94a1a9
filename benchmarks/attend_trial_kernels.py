r"""The kernels of `attend` (`flashcaps.kernels._attend_kernels`) written for fewer instructions; not measured yet.

Same arguments and results. What differs:

- weighted_sum, parent_gradient: dealt columns. A product's accumulator has columns 2t, 2t + 1 of every eight in thread
  t of four, where the next product in TF32 wants t, t + 4 of its left factor. Summed columns may stand in any order as
  long as both factors agree, so the eight are renamed (0 2 4 6 1 3 5 7 are called 0 ... 7) and the weights' rows with
  them: what took 32 shuffles and 64 selections of a thread and parent takes none.
- parent_gradient: gW_j = sum_b (c u)^T gs + (ga u)^T q sums over rows, so its left factor is transposed, through shared
  memory. Here poses are held twice, also transposed, and c and ga are transposed in place of c u and ga u: they are d
  times smaller.
- pose_gradient: no product of y that is not added up at once. log_sum_exp: one exponential of each agreement, not two.

Instructions of the inner loop, 64 x 64 tiles with 4 warps at 1152x8 -> 10x16 for sm_90, before and now: log_sum_exp
170 and 159, weighted_sum 343 and 241, pose_gradient 318 and 288, parent_gradient 601 and 457 (loads from shared memory
80 and 32, stores 78 and 50).
AHEAD: the next parent's tiles are loaded before this one's are used, for up to 60 registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashcaps.kernels._attend_kernels import _dot_poses, _parent_at, _poses, _times_weight, _weight_at


@triton.jit
def _deal(x, R: tl.constexpr, N: tl.constexpr):
    """Columns 0 2 4 6 1 3 5 7 of every eight of x (R, N); x itself if it has not as many, or is of 16 bits."""
    if N % 8 == 0 and x.dtype == tl.float32:
        x = tl.reshape(tl.permute(tl.reshape(x, (R, N // 8, 4, 2)), (0, 1, 3, 2)), (R, N))
    return x


@triton.jit
def _deal_rows(w, N: tl.constexpr, HP: tl.constexpr):
    """The same of the rows of w (N, HP)."""
    if N % 8 == 0 and w.dtype == tl.float32:
        w = tl.reshape(tl.permute(tl.reshape(w, (N // 8, 4, 2, HP)), (0, 2, 1, 3)), (N, HP))
    return w


@triton.jit
def log_sum_exp(
    u, w, q, l, lse, B,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, LEAKY: tl.constexpr, PRECISION: tl.constexpr,
    MEND: tl.constexpr,
):  # fmt: skip
    """lse_i = log sum_j exp a_ij (+ 1 when leaky) -> (B, G), with one exponential of each: the other one's is 1."""
    b = tl.program_id(0) * BT + tl.arange(0, BT)
    i = tl.program_id(1) * IC + tl.arange(0, IC)
    x, _, _ = _poses(u, b, i, B, G, C, D, CP, DP)
    top = tl.full((BT, IC), 0.0 if LEAKY else -3.0e38, tl.float32)
    total = tl.full((BT, IC), 1.0 if LEAKY else 0.0, tl.float32)
    for j in range(J):
        a = tl.zeros((BT, IC), tl.float32)
        if QUERY:
            w_at, w_in = _weight_at(i, j, G, D, H, DP, HP)
            p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
            w_j = tl.load(w + w_at, w_in, 0.0)
            y = _times_weight(tl.load(q + p_at, p_in, 0.0), w_j, BT, CP, DP, IC, PRECISION)
            a = _dot_poses(x, y, MEND)
        if LOGITS:
            a += tl.load(l + i * J + j, i < G, 0.0)[None, :]
        less = tl.exp(-tl.abs(top - a))
        total = tl.where(a > top, total * less + 1.0, total + less)
        top = tl.maximum(top, a)
    tl.store(lse + b[:, None] * G + i[None, :], top + tl.log(total), (b[:, None] < B) & (i[None, :] < G))


@triton.jit
def weighted_sum(
    u, w, q, l, lse, s, B, tiles, parents,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, PRECISION: tl.constexpr,
    MEND: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Partial s_j of `tiles` tiles of children -> (chunks, B, J, C, h)."""
    b = tl.program_id(0) * BT + tl.arange(0, BT)
    s += tl.program_id(1).to(tl.int64) * B * J * (C * H)
    first = tl.program_id(2) * parents
    last = tl.minimum(first + parents, J)
    for t in range(tiles):
        i = (tl.program_id(1) * tiles + t) * IC + tl.arange(0, IC)
        x, _, _ = _poses(u, b, i, B, G, C, D, CP, DP)
        inside = (b[:, None] < B) & (i[None, :] < G)
        lse_i = tl.load(lse + b[:, None] * G + i[None, :], inside, float("inf"))
        w_at, w_in = _weight_at(i, first, G, D, H, DP, HP)
        p_at, p_in = _parent_at(b, first, B, J, C, H, CP, HP)
        if AHEAD:
            next_w = tl.load(w + w_at, w_in, 0.0)
            next_s = tl.load(s + p_at, p_in & (t > 0), 0.0)
        for j in range(first, last):
            p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
            if AHEAD:
                w_j, before = next_w, next_s
                more = j + 1 < last
                w_at, w_in = _weight_at(i, j + 1, G, D, H, DP, HP)
                next_w = tl.load(w + w_at, w_in & more, 0.0)
                next_s = tl.load(s + p_at + C * H, p_in & more & (t > 0), 0.0)
            else:
                w_at, w_in = _weight_at(i, j, G, D, H, DP, HP)
                w_j = tl.load(w + w_at, w_in, 0.0)
                before = tl.load(s + p_at, p_in & (t > 0), 0.0)
            a = tl.zeros((BT, IC), tl.float32)
            if QUERY:
                y = _times_weight(tl.load(q + p_at, p_in, 0.0), w_j, BT, CP, DP, IC, PRECISION)
                a = _dot_poses(x, y, MEND)
            if LOGITS:
                a += tl.load(l + i * J + j, i < G, 0.0)[None, :]
            coupled = x * (tl.exp(a - lse_i) * MEND)[:, None, None, :]
            coupled = _deal(tl.reshape(coupled, (BT * CP, DP * IC)).to(w_j.dtype), BT * CP, DP * IC)
            sums = tl.dot(coupled, _deal_rows(w_j, DP * IC, HP), input_precision=PRECISION)
            tl.store(s + p_at, before + sums, p_in)
        tl.debug_barrier()  # the next tile's threads read what other threads of this program wrote


@triton.jit
def pose_gradient(
    gs, u, w, q, l, lse, gu, delta, B, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, DETACH: tl.constexpr, PRECISION: tl.constexpr,
    MEND: tl.constexpr,
):  # fmt: skip
    """gu (B, G, C, d), added to what is there if `again`, and delta (B, G); no product of y that is not added up."""
    b = tl.program_id(0) * BT + tl.arange(0, BT)
    i = tl.program_id(1) * IC + tl.arange(0, IC)
    x, u_at, u_in = _poses(u, b, i, B, G, C, D, CP, DP)
    child_in = (b[:, None] < B) & (i[None, :] < G)
    child_at = b[:, None] * G + i[None, :]
    lse_i = tl.load(lse + child_at, child_in, float("inf"))
    grad = tl.zeros((BT, CP, DP, IC), tl.float32)
    mean_y = tl.zeros((BT, CP, DP, IC), tl.float32)
    delta_i = tl.zeros((BT, IC), tl.float32)
    for j in range(J):
        w_at, w_in = _weight_at(i, j, G, D, H, DP, HP)
        p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
        w_j = tl.load(w + w_at, w_in, 0.0)
        a = tl.zeros((BT, IC), tl.float32)
        if LOGITS:
            a += tl.load(l + i * J + j, i < G, 0.0)[None, :]
        if QUERY:
            y = _times_weight(tl.load(q + p_at, p_in, 0.0), w_j, BT, CP, DP, IC, PRECISION)
            a += _dot_poses(x, y, MEND)
        c = tl.exp(a - lse_i)
        if QUERY and not DETACH:
            mean_y += y * c[:, None, None, :]
        z = _times_weight(tl.load(gs + p_at, p_in, 0.0), w_j, BT, CP, DP, IC, PRECISION)
        moved = c * _dot_poses(x, z, MEND)
        grad += z * c[:, None, None, :]
        if QUERY and not DETACH:
            grad += y * moved[:, None, None, :]
        delta_i += moved
    if QUERY and not DETACH:
        grad -= mean_y * delta_i[:, None, None, :]
    tl.store(delta + child_at, delta_i, child_in)
    out = tl.permute(grad * MEND, (0, 3, 1, 2)) + tl.load(gu + u_at, u_in & (again > 0), 0.0)
    tl.store(gu + u_at, out.to(gu.dtype.element_ty), u_in)


@triton.jit
def parent_gradient(
    gs, u, w, q, l, lse, delta, gw, gq, gl, B, tiles, batches, parents, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, DETACH: tl.constexpr, PRECISION: tl.constexpr,
    MEND: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Partial gW (examples' chunks, J, d, G, h), gq (children's chunks, B, J, C, h), gl (examples' chunks, G, J)."""
    gq += tl.program_id(0).to(tl.int64) * B * J * (C * H)
    gw += tl.program_id(1).to(tl.int64) * J * G * (D * H)
    gl += tl.program_id(1).to(tl.int64) * G * J
    first = tl.program_id(2) * parents
    last = tl.minimum(first + parents, J)
    for step in range(tiles * batches):
        t = step // batches
        n = step % batches
        i = (tl.program_id(0) * tiles + t) * IC + tl.arange(0, IC)
        b = (tl.program_id(1) * batches + n) * BT + tl.arange(0, BT)
        to_gw = (n > 0) | (again > 0)
        x, u_at, u_in = _poses(u, b, i, B, G, C, D, CP, DP)
        across = tl.permute(tl.load(u + u_at, u_in, 0.0).to(tl.float32), (3, 1, 0, 2)) * MEND  # (DP, IC, BT, CP)
        child_in = (b[:, None] < B) & (i[None, :] < G)
        lse_i = tl.load(lse + b[:, None] * G + i[None, :], child_in, float("inf"))
        delta_i = tl.load(delta + b[:, None] * G + i[None, :], child_in, 0.0)
        w_at, w_in = _weight_at(i, first, G, D, H, DP, HP)
        p_at, p_in = _parent_at(b, first, B, J, C, H, CP, HP)
        if AHEAD:
            next_gs = tl.load(gs + p_at, p_in, 0.0)
            next_w = tl.load(w + w_at, w_in, 0.0)
            if QUERY:
                next_q = tl.load(q + p_at, p_in, 0.0)
        for j in tl.range(first, last, num_stages=1):
            w_at, w_in = _weight_at(i, j, G, D, H, DP, HP)
            p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
            if AHEAD:
                more = j + 1 < last
                gs_j, w_j = next_gs, next_w
                next_gs = tl.load(gs + p_at + C * H, p_in & more, 0.0)
                next_w = tl.load(w + w_at + G * D * H, w_in & more, 0.0)
                gw_j = tl.load(gw + w_at, w_in & to_gw, 0.0)
            else:
                gs_j, w_j = tl.load(gs + p_at, p_in, 0.0), tl.load(w + w_at, w_in, 0.0)
            a = tl.zeros((BT, IC), tl.float32)
            if LOGITS:
                a += tl.load(l + i * J + j, i < G, 0.0)[None, :]
            if QUERY:
                if AHEAD:
                    q_j = next_q
                    next_q = tl.load(q + p_at + C * H, p_in & more, 0.0)
                    before = tl.load(gq + p_at, p_in & (t > 0), 0.0)
                else:
                    q_j = tl.load(q + p_at, p_in, 0.0)
                a += _dot_poses(x, _times_weight(q_j, w_j, BT, CP, DP, IC, PRECISION), MEND)
            c = tl.exp(a - lse_i)
            ga = c * (_dot_poses(x, _times_weight(gs_j, w_j, BT, CP, DP, IC, PRECISION), MEND) - delta_i)
            if LOGITS:
                gl_at = gl + i * J + j
                tl.store(gl_at, tl.load(gl_at, (i < G) & to_gw, 0.0) + tl.sum(ga, 0), i < G)
            if QUERY:
                if not AHEAD:
                    before = tl.load(gq + p_at, p_in & (t > 0), 0.0)
                moved = tl.reshape(x * (ga * MEND)[:, None, None, :], (BT * CP, DP * IC)).to(w_j.dtype)
                moved = _deal(moved, BT * CP, DP * IC)
                sums = tl.dot(moved, _deal_rows(w_j, DP * IC, HP), input_precision=PRECISION)
                tl.store(gq + p_at, before + sums, p_in)
            if not AHEAD:
                gw_j = tl.load(gw + w_at, w_in & to_gw, 0.0)
            coupled = tl.reshape(across * tl.trans(c)[None, :, :, None], (DP * IC, BT * CP)).to(gs_j.dtype)
            gw_j += tl.dot(coupled, gs_j, input_precision=PRECISION)
            if QUERY and not DETACH:
                moved = tl.reshape(across * tl.trans(ga)[None, :, :, None], (DP * IC, BT * CP)).to(gs_j.dtype)
                gw_j += tl.dot(moved, q_j, input_precision=PRECISION)
            tl.store(gw + w_at, gw_j, w_in)
        tl.debug_barrier()  # the next tile's threads read what other threads of this program wrote
