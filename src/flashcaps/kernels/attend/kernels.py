r"""Triton kernels of `attend`: children attend to parents over votes that only ever exist as factors.

With v_ij = u_i W_ij every use of a vote is a product with the tile of poses u, which stays in registers while the
parents stream past:

    y_ij = q_j W_ij^T      a_ij = l_ij + u_i . y_ij      c_ij = exp(a_ij - lse_i)      s_j = sum_i (c_ij u_i) W_ij
    z_ij = gs_j W_ij^T     gc_ij = u_i . z_ij            ga_ij = c_ij (gc_ij - delta_i),  delta_i = sum_j c_ij gc_ij
    gu_i = sum_j c_ij z_ij + ga_ij y_ij                  gq_j = sum_i (ga_ij u_i) W_ij
    gW_ij = sum_b (c_ij u_i)^T gs_j + (ga_ij u_i)^T q_j  gl_ij = sum_b ga_ij

A tile is BT examples x IC children: to the matrix units rows (b, c) and columns (k, i), so that a sum over the pose's
columns k stays inside a thread and each exponential is taken once. CP, DP, HP are C, d, h rounded up to what the units
take. Loads outside a tensor are zero and their lse infinite: couplings, and all that they multiply, are zero there.

A forward launch has programs for lse, then for s, and those that `finish`; a backward launch for gu and delta, then for
gq, gW and gl, and those that finish. Each kind waits for the one before (`common.order_triton`).

Constants: QUERY, LOGITS: couplings depend on them. DETACH: poses and weights get no gradient through the agreement.
GAIN: `launch.tf32_gain`. AT: where u lies, the constants of `common.patches.Window`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.order_triton import arrive, wait_for
from ..common.patches_triton import child_at, place_at
from .epilogue import finish


@triton.jit
def _poses(
    u, b, i, B, G: tl.constexpr, C: tl.constexpr, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr,
    AT: tl.constexpr,
):  # fmt: skip
    """u (B, G, C, d), or an image's windows, -> (BT, CP, DP, IC), and its addresses and mask as (BT, IC, CP, DP)."""
    c = tl.arange(0, CP)[None, None, :, None]
    k = tl.arange(0, DP)[None, None, None, :]
    place = place_at(b, AT[0], AT[1], AT[2], AT[3], AT[4])[:, None, None, None]
    at = place + child_at(i, AT[5], AT[6], AT[7], AT[8])[None, :, None, None] + c * D + k
    inside = (b[:, None, None, None] < B) & (i[None, :, None, None] < G)
    if CP != C:
        inside = inside & (c < C)
    if DP != D:
        inside = inside & (k < D)
    x = tl.load(u + at, inside, 0.0).to(tl.float32)
    return tl.permute(x, (0, 2, 3, 1)), at, inside


@triton.jit
def _gradient_at(b, i, G: tl.constexpr, C: tl.constexpr, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr):
    """Addresses in gu (B, G, C, d), as (BT, IC, CP, DP)."""
    c = tl.arange(0, CP)[None, None, :, None]
    k = tl.arange(0, DP)[None, None, None, :]
    return ((b[:, None, None, None] * G + i[None, :, None, None]) * C + c) * D + k


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
def _weight_at(i, j, G: tl.constexpr, D: tl.constexpr, H: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr):
    """Addresses of W_j in (J, d, G, h), as (DP * IC, HP), and their mask."""
    h = tl.arange(0, HP)[None, :]
    k = tl.arange(0, DP)[:, None]
    row = tl.reshape((j * D + k) * G + i[None, :], (DP * i.shape[0],))
    inside = tl.reshape((k < D) & (i[None, :] < G), (DP * i.shape[0],))[:, None]
    if HP != H:
        inside = inside & (h < H)
    return row[:, None] * H + h, inside


@triton.jit
def _dot_poses(x, y, GAIN: tl.constexpr):
    """sum over a pose of x y, both (BT, CP, DP, IC) -> (BT, IC)."""
    return tl.sum(tl.sum(x * y, 2), 1) * GAIN


@triton.jit
def _times_weight(p, w_j, x, PREC: tl.constexpr):
    """p_j W_ij^T of a parent's tile p (BT * CP, HP), in the shape of x (BT, CP, DP, IC)."""
    return tl.reshape(tl.dot(p, tl.trans(w_j), input_precision=PREC), x.shape)


@triton.jit
def _meet_parent(
    x, w, q, gs, l, b, i, j, B, G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    HP: tl.constexpr, QUERY: tl.constexpr, LOGITS: tl.constexpr, GRADIENT: tl.constexpr, PREC: tl.constexpr,
    GAIN: tl.constexpr,
):  # fmt: skip
    """How every kernel begins with parent j: the agreement a_ij (BT, IC), W_j (DP * IC, HP); of a query y_ij (BT, CP,
    DP, IC) and q_j (BT * CP, HP), x for both without one; of a GRADIENT z_ij and gs_j. Loads come before products.
    """
    w_at, w_in = _weight_at(i, j, G, D, H, x.shape[2], HP)
    p_at, p_in = _parent_at(b, j, B, J, C, H, x.shape[1], HP)
    w_j = tl.load(w + w_at, w_in, 0.0)
    a = tl.zeros((x.shape[0], x.shape[3]), tl.float32)
    q_j, y, gs_j, z = x, x, x, x
    if QUERY:
        q_j = tl.load(q + p_at, p_in, 0.0)
    if GRADIENT:
        gs_j = tl.load(gs + p_at, p_in, 0.0)
    if QUERY:
        y = _times_weight(q_j, w_j, x, PREC)
    if GRADIENT:
        z = _times_weight(gs_j, w_j, x, PREC)
    if QUERY:
        a = _dot_poses(x, y, GAIN)
    if LOGITS:
        a += tl.load(l + i * J + j, i < G, 0.0)[None, :]
    return a, w_j, y, q_j, z, gs_j


@triton.jit
def _deal(x, R: tl.constexpr, N: tl.constexpr):
    """Columns 0 2 4 6 1 3 5 7 of every eight of x (R, N); x itself if it has not as many, or is of 16 bits.

    A product's accumulator has columns 2t, 2t + 1 of every eight in thread t of four, where the next product in TF32
    wants t, t + 4 of its left factor. Summed columns may stand in any order if both factors agree: dealt like this
    they need no shuffle.
    """
    if N % 8 == 0 and x.dtype == tl.float32:
        x = tl.reshape(tl.permute(tl.reshape(x, (R, N // 8, 4, 2)), (0, 1, 3, 2)), (R, N))
    return x


@triton.jit
def _sum_votes(x, c, w_j, N: tl.constexpr, HP: tl.constexpr, PREC: tl.constexpr, GAIN: tl.constexpr):
    """sum_i (c_ij u_i) W_ij of a tile, (BT * CP, HP). N: DP * IC, rows of W_j."""
    rows: tl.constexpr = x.shape[0] * x.shape[1]
    weighted = tl.reshape(x * (c * GAIN)[:, None, None, :], (rows, N)).to(w_j.dtype)
    if N % 8 == 0 and w_j.dtype == tl.float32:  # dealt like the columns of the left factor
        w_j = tl.reshape(tl.permute(tl.reshape(w_j, (N // 8, 4, 2, HP)), (0, 2, 1, 3)), (N, HP))
    return tl.dot(_deal(weighted, rows, N), w_j, input_precision=PREC)


@triton.jit(do_not_specialize=["more"])
def attend_forward(
    u, w, q, l, lse, parts, counters, B, tiles, parents,
    bias, beta, s, total, out, before, query, more, scale, next_scale, eps,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, LEAKY: tl.constexpr, PRECISION: tl.constexpr, GAIN: tl.constexpr,
    RP: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, STORE: tl.constexpr,
    AT: tl.constexpr,
):  # fmt: skip
    """Three kinds of programs, each of which waits for the one before:

    lse_i = log sum_j exp a_ij (+ 1 when leaky) -> (B, G). Program: a tile, all its parents.
    Partial s_j -> (chunks, B, J, C, h). Program: `tiles` tiles of children, `parents` parents.
    `finish`, with bias to eps and RP to STORE.

    counters: one for all sums, one for each chunk of children and tile of examples.
    """
    high, wide = tl.cdiv(B, BT), tl.cdiv(G, IC)
    chunks, groups = tl.cdiv(wide, tiles), tl.cdiv(J, parents)
    sums = high * chunks * groups
    p = tl.program_id(0)
    if p < high * wide:
        b = p % high * BT + tl.arange(0, BT)
        i = p // high * IC + tl.arange(0, IC)
        x, _, _ = _poses(u, b, i, B, G, C, D, CP, DP, AT)
        top = tl.full((BT, IC), 0.0 if LEAKY else -3.0e38, tl.float32)
        of_all = tl.full((BT, IC), 1.0 if LEAKY else 0.0, tl.float32)
        for j in range(J):
            a, _w, _y, _q, _z, _gs = _meet_parent(
                x, w, q, q, l, b, i, j, B, G, J, C, D, H, HP, QUERY, LOGITS, False, PRECISION, GAIN
            )
            less = tl.exp(-tl.abs(top - a))  # of two exponentials, relative to the top, one is always 1
            of_all = tl.where(a > top, of_all * less + 1.0, of_all + less)
            top = tl.maximum(top, a)
        tl.store(lse + b[:, None] * G + i[None, :], top + tl.log(of_all), (b[:, None] < B) & (i[None, :] < G))
        arrive(counters + 1 + p // high // tiles * high + p % high)
    elif p < high * wide + sums:
        k = p - high * wide
        n, chunk, first = k // groups % high, k // groups // high, k % groups * parents
        b = n * BT + tl.arange(0, BT)
        parts += chunk.to(tl.int64) * B * J * (C * H)
        wait_for(counters + 1 + chunk * high + n, tl.minimum(tiles, wide - chunk * tiles))
        for t in range(tiles):
            i = (chunk * tiles + t) * IC + tl.arange(0, IC)
            x, _, _ = _poses(u, b, i, B, G, C, D, CP, DP, AT)
            child, inside = b[:, None] * G + i[None, :], (b[:, None] < B) & (i[None, :] < G)
            lse_i = tl.load(lse + child, inside, float("inf"))
            for j in range(first, tl.minimum(first + parents, J)):
                a, w_j, _y, _q, _z, _gs = _meet_parent(
                    x, w, q, q, l, b, i, j, B, G, J, C, D, H, HP, QUERY, LOGITS, False, PRECISION, GAIN
                )
                p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
                held = tl.load(parts + p_at, p_in & (t > 0), 0.0)
                s_j = _sum_votes(x, tl.exp(a - lse_i), w_j, DP * IC, HP, PRECISION, GAIN)
                tl.store(parts + p_at, held + s_j, p_in)
            tl.debug_barrier()  # the next tile's threads read what other threads of this program wrote
        arrive(counters)
    else:
        wait_for(counters, sums)
        k = p - high * wide - sums
        finish(
            k, tl.num_programs(0) - high * wide - sums, parts, chunks, B * J, J, bias, beta, s, total, out, before,
            query, more, scale, next_scale, eps, C * H, RP, RT, CT, KIND, BIAS, STORE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["again", "more"])
def attend_backward(
    gs, u, w, q, l, lse, gu, delta, gw, gq, gl, counters, B, poses, sums, tiles, batches, parents, again,
    bias, beta, s, total, out, before, query, more, scale, next_scale, eps,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    BT: tl.constexpr, IC: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, HP: tl.constexpr, STAGES: tl.constexpr,
    QUERY: tl.constexpr, LOGITS: tl.constexpr, DETACH: tl.constexpr, PRECISION: tl.constexpr, GAIN: tl.constexpr,
    RP: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, STORE: tl.constexpr,
    AT: tl.constexpr,
):  # fmt: skip
    """Three kinds of programs, each of which waits for the one before; all of a kind, or none:

    gu (B, G, C, d), added to what it holds if `again`, and delta (B, G). `poses` programs: a tile, all its parents,
        gu_i = sum_j c_ij (z_ij + gc_ij y_ij) - delta_i sum_j c_ij y_ij
    Partial gW (examples' chunks, J, d, G, h), gq (children's chunks, B, J, C, h), gl (examples' chunks, G, J). `sums`
        programs: `batches` tiles of examples x `tiles` of children x `parents` parents, added up in their own partials;
        gW and gl are added to what they hold if `again`. gW sums over rows: its left factors are transposed, of which
        poses are held twice, once so, and only c and ga, d times smaller, pass through shared memory.
    `finish`, of the iteration before, with bias to eps and RP to STORE. KIND "none": no gq, either.

    counters: one for all sums, one for each chunk of children and of examples.
    """
    high, wide = tl.cdiv(B, BT), tl.cdiv(G, IC)
    rows, groups = tl.cdiv(high, batches), tl.cdiv(J, parents)
    p = tl.program_id(0)
    if p < poses:
        b = p % high * BT + tl.arange(0, BT)
        i = p // high * IC + tl.arange(0, IC)
        x, _, u_in = _poses(u, b, i, B, G, C, D, CP, DP, AT)
        child, inside = b[:, None] * G + i[None, :], (b[:, None] < B) & (i[None, :] < G)
        lse_i = tl.load(lse + child, inside, float("inf"))
        grad = tl.zeros((BT, CP, DP, IC), tl.float32)
        mean_y = tl.zeros((BT, CP, DP, IC), tl.float32)
        delta_i = tl.zeros((BT, IC), tl.float32)
        for j in range(J):
            a, _w, y, _q, z, _gs = _meet_parent(
                x, w, q, gs, l, b, i, j, B, G, J, C, D, H, HP, QUERY, LOGITS, True, PRECISION, GAIN
            )
            gc = _dot_poses(x, z, GAIN)
            c = tl.exp(a - lse_i)
            if QUERY and not DETACH:
                y *= c[:, None, None, :]
                mean_y += y
                grad += y * gc[:, None, None, :]
            grad += z * c[:, None, None, :]
            delta_i += c * gc
        if QUERY and not DETACH:
            grad -= mean_y * delta_i[:, None, None, :]
        tl.store(delta + child, delta_i, inside)
        gu_at = gu + _gradient_at(b, i, G, C, D, CP, DP)
        grad = tl.permute(grad * GAIN, (0, 3, 1, 2)) + tl.load(gu_at, u_in & (again > 0), 0.0)
        tl.store(gu_at, grad.to(gu.dtype.element_ty), u_in)
        if sums > 0:
            arrive(counters + 1 + p // high // tiles * rows + p % high // batches)
    elif p < poses + sums:
        k = p - poses
        row, chunk, first = k // groups % rows, k // groups // rows, k % groups * parents
        if poses > 0:
            many = tl.minimum(batches, high - row * batches) * tl.minimum(tiles, wide - chunk * tiles)
            wait_for(counters + 1 + chunk * rows + row, many)
        gq += chunk.to(tl.int64) * B * J * (C * H)
        gw += row.to(tl.int64) * J * G * (D * H)
        gl += row.to(tl.int64) * G * J
        for step in range(tiles * batches):
            t = step // batches
            n = step % batches
            i = (chunk * tiles + t) * IC + tl.arange(0, IC)
            b = (row * batches + n) * BT + tl.arange(0, BT)
            to_gw = (n > 0) | (again > 0)
            x, u_at, u_in = _poses(u, b, i, B, G, C, D, CP, DP, AT)
            across = tl.permute(tl.load(u + u_at, u_in, 0.0).to(tl.float32), (3, 1, 0, 2))  # (DP, IC, BT, CP)
            child, inside = b[:, None] * G + i[None, :], (b[:, None] < B) & (i[None, :] < G)
            lse_i = tl.load(lse + child, inside, float("inf"))
            delta_i = tl.load(delta + child, inside, 0.0)
            for j in tl.range(first, tl.minimum(first + parents, J), num_stages=STAGES):
                a, w_j, _y, q_j, z, gs_j = _meet_parent(
                    x, w, q, gs, l, b, i, j, B, G, J, C, D, H, HP, QUERY, LOGITS, True, PRECISION, GAIN
                )
                p_at, p_in = _parent_at(b, j, B, J, C, H, CP, HP)
                w_at, w_in = _weight_at(i, j, G, D, H, DP, HP)
                c = tl.exp(a - lse_i)
                ga = c * (_dot_poses(x, z, GAIN) - delta_i)
                if LOGITS:
                    gl_at = gl + i * J + j
                    tl.store(gl_at, tl.load(gl_at, (i < G) & to_gw, 0.0) + tl.sum(ga, 0), i < G)
                coupled = tl.reshape(across * tl.trans(c)[None, :, :, None], (DP * IC, BT * CP)).to(gs_j.dtype)
                gw_j = tl.dot(coupled, gs_j, input_precision=PRECISION)
                if QUERY and not DETACH:
                    moved = tl.reshape(across * tl.trans(ga)[None, :, :, None], (DP * IC, BT * CP)).to(gs_j.dtype)
                    gw_j = tl.dot(moved, q_j, gw_j, input_precision=PRECISION)
                if KIND != "none":
                    of_q = tl.load(gq + p_at, p_in & (t > 0), 0.0)
                    tl.store(gq + p_at, of_q + _sum_votes(x, ga, w_j, DP * IC, HP, PRECISION, GAIN), p_in)
                tl.store(gw + w_at, gw_j * GAIN + tl.load(gw + w_at, w_in & to_gw, 0.0), w_in)
            tl.debug_barrier()  # the next tile's threads read what other threads of this program wrote
        arrive(counters)
    else:
        wait_for(counters, sums)
        k = p - poses - sums
        finish(
            k, tl.num_programs(0) - poses - sums, gq, tl.cdiv(wide, tiles), B * J, J, bias, beta, s, total, out, before,
            query, more, scale, next_scale, eps, C * H, RP, RT, CT, KIND, BIAS, STORE,
        )  # fmt: skip
