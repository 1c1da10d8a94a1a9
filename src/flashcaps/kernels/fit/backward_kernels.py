r"""Backward kernels. Votes and couplings are computed again; only Z (B, I) was kept.

With e = v - mean_j, N = n_j + eps, and g_x the gradient of an output x, the gradient of `routing.math.weighted_moments`
and `log_density`, which autograd gives of the reference:
    Q = g_variance / N,   A = (g_mean - 2 eps mean Q) / N,   K = g_n - sum_d Q (variance - eps)
    dL/dw_ij = K_j + sum_d e (A + Q e)
    dL/dv    = w (A + 2 Q e) - dL/da (v - mu) / sigma^2
    dL/da_ij = p_ij [gate_i (dL/dw_ij - s_i) + g_Z_i],   s_i = sum_j p_ij dL/dw_ij
s is divided by sum_j p_ij: that is 1, but for the rounding of Z, which dL/dw - s would multiply by all of dL/dw.
K, A and Q are moved to the centre mu of the density, so that one deviation f = v - mu serves both.

`slopes` begins an iteration: from the gradients of its parents and of their logits to the table of K, A and Q. Then
each gradient is summed along a walk: s and g_u over parents (a child per lane), g_W over the batch, and last those of
the prior, mean and variance that the iteration began with, over children (a parent per lane). The same launch ends with
the `slopes` of the iteration before. Nothing is added atomically. AGAIN: an iteration adds to what those after it
found, in place.

Bytes: each kernel reads poses and transforms once, and writes its gradient once.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ..common.order_triton import arrive, wait_for
from .forward_kernels import (
    HEAD,
    accumulate,
    child_deviations,
    child_lanes,
    deviations,
    less,
    load,
    load_chunks,
    load_pose,
    load_table,
    log_sigmoid,
    mahalanobis,
    merged,
    pair_at,
    parent_deviations,
    parents_at,
    plus,
    repeat,
    rows_at,
    step_at,
    store,
    walk_lanes,
    walk_of,
)


@triton.jit
def load_slopes(row, mask, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr):
    """Of a parent's table: A, Q (D each), K, and with a DENSITY its constant and 1 / sigma^2 (D)."""
    a = load_table(row, HEAD + 2 * D, mask, D, J, RUN)
    q = load_table(row, HEAD + 3 * D, mask, D, J, RUN)
    precision = load_table(row, HEAD + D, mask, D if DENSITY else 0, J, RUN)
    k = load(row + (1 if RUN > 1 else J), 0, mask, 1, 1)[0]
    return a, q, k, load(row, 0, mask, 1, 1)[0], precision


@triton.jit
def coupling(f, constant, precision, z, first, D: tl.constexpr, DENSITY: tl.constexpr):
    """p_ij = exp(a_ij - Z_i), without a density the first one"""
    p = first
    if DENSITY:
        p = tl.exp(constant - 0.5 * mahalanobis(f, precision, D) - z)
    return p


@triton.jit
def benefit(constant, f, a, q, D: tl.constexpr):
    """dL/dw_ij = K + sum_d f (A + Q f)"""
    x = constant
    for d in tl.static_range(D):
        x += f[d] * (a[d] + q[d] * f[d])
    return x


@triton.jit
def logit_gradient(p, g, gw, s, g_z, at, mask, SHARED: tl.constexpr):
    """dL/da_ij = p_ij [gate_i (dL/dw_ij - s_i) + g_Z_i]"""
    ga = g * (gw - tl.load(s + at, mask=mask, other=0.0))
    if SHARED:
        ga += tl.load(g_z + at, mask=mask, other=0.0)
    return p * ga


@triton.jit
def vote_gradient(w, ga, f, precision, a, q, D: tl.constexpr, DENSITY: tl.constexpr):
    """dL/dv = w (A + 2 Q f) - dL/da f / sigma^2"""
    g = ()
    for d in tl.static_range(D):
        slope = 2 * w * q[d]
        if DENSITY:
            slope -= ga * precision[d]
        g = g + (w * a[d] + slope * f[d],)
    return g


@triton.jit
def scaled(factor, x, y, N: tl.constexpr):
    """factor x y"""
    z = ()
    for n in tl.static_range(N):
        z = z + (factor * x[n] * y[n],)
    return z


@triton.jit
def add_pose_gradient(total, g, w, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr):
    """total (C, K) + g (C, H) W (K, H)^T"""
    out = ()
    for c in tl.static_range(C):
        for k in tl.static_range(K):
            x = total[c * K + k]
            for h in tl.static_range(H):
                x += g[c * H + h] * w[k * H + h]
            out = out + (x,)
    return out


@triton.jit
def add_weight_gradient(total, u, g, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr):
    """total (K, H) + u (C, K)^T g (C, H)"""
    out = ()
    for k in tl.static_range(K):
        for h in tl.static_range(H):
            x = total[k * H + h]
            for c in tl.static_range(C):
                x += u[c * K + k] * g[c * H + h]
            out = out + (x,)
    return out


@triton.jit
def slopes(
    program, programs, parts, chunks, logit, weight, mean, variance, below, centre, around, slope, shift, g_logit,
    g_mean, g_variance, g_score, g_offset, g_slope, g_shift, table, scale, offset_factor, slope_factor, eps, tau,
    tau_above, count, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr, PRIOR: tl.constexpr, OFFSET: tl.constexpr,
    SLOPE: tl.constexpr, SPREAD: tl.constexpr, SHIFT: tl.constexpr, GIVEN: tl.constexpr, MEAN: tl.constexpr,
    VARIANCE: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """K, A and Q of parents fitted about others (below: their logit; centre; around: their variance); in the first
    iteration, which has no density, about themselves: of what belongs to one, nothing else is read.

    Gradients of their logit, MEAN and VARIANCE are GIVEN. PRIOR: the iteration after began with them, and its parts,
    chunks' sums of dL/da, times f and times f^2, add what its E-step of sharpness tau_above makes of them.
    g_score takes the gradient g of logits, g_shift (B, J, D) the sum of w (A + 2 Q e) over children, where e sums to
    eps mean, weighted. A bias that all children share moves votes away from the centre: it loses the centre's gradient.
    """
    for t in range(program, tl.cdiv(count, TILE), programs):
        x, b, j, d, there, live = parents_at(t, count, J, D, WIDTH, TILE)
        at = (b * D + d) * J + j
        n = tl.load(weight + x, mask=there, other=0.0)
        m, own = tl.load(mean + at, mask=live, other=0.0), tl.load(variance + at, mask=live, other=1.0)
        g = tl.full((1, TILE), 0.0, tl.float32)
        a = tl.full((WIDTH, TILE), 0.0, tl.float32)
        k, q, of_shift = g, a, a
        if GIVEN:
            g += tl.load(g_logit + x, mask=there, other=0.0)
        if MEAN:
            a += tl.load(g_mean + at, mask=live, other=0.0)
        if VARIANCE:
            q += tl.load(g_variance + at, mask=live, other=0.0)
        if PRIOR:
            p, stride = parts + b * ((2 * D + 1) * J) + j, count * (2 * D + 1)
            prior = tl.full((1, TILE), 0.0, tl.float32)
            once = tl.full((WIDTH, TILE), 0.0, tl.float32)
            twice = once
            for c in range(0, chunks, AHEAD):
                ga = load_chunks(p, stride, c, chunks, there, AHEAD)
                f = load_chunks(p + (1 + d) * J, stride, c, chunks, live, AHEAD)
                f2 = load_chunks(p + (1 + D + d) * J, stride, c, chunks, live, AHEAD)
                for i in tl.static_range(AHEAD):
                    prior += ga[i]
                    once += f[i]
                    twice += f2[i]
            g += prior * tl.sigmoid(-tl.load(logit + x, mask=there, other=0.0))
            a += tau_above * once / own
            q += 0.5 * tau_above * (twice / own - prior) / own
            of_shift -= tau_above * once / own
        tl.store(g_score + x, g, mask=there)
        if OFFSET:
            accumulate(g_offset + x, 0, there, (scale * offset_factor * g,), 1, 1, PRIOR)
        if SLOPE:
            k += scale * slope_factor * g * tl.load(slope + j, mask=there, other=0.0)
            accumulate(g_slope + x, 0, there, (scale * slope_factor * g * n,), 1, 1, PRIOR)
        divisor = tl.where(there, n + eps, 1.0)
        if SPREAD:
            k -= 0.5 * scale * g * tl.sum(tl.log(own), 0, keep_dims=True)
            q -= 0.5 * scale * g * n / own
        q = tl.where(live, q, 0.0) / divisor
        a = (a - 2 * eps * m * q) / divisor
        k -= tl.sum(q * (own - eps), 0, keep_dims=True)
        if SHIFT:
            accumulate(g_shift + x * D + d, 0, live, (of_shift + n * a + 2 * q * eps * m,), 1, 1, PRIOR)
        mu, var = tl.load(centre + at, mask=live, other=0.0), tl.load(around + at, mask=live, other=1.0)
        constant = log_sigmoid(tl.load(below + x, mask=there, other=0.0))
        constant -= 0.5 * tau * tl.sum(tl.log(var), 0, keep_dims=True)
        off = mu - m
        k += tl.sum(off * (a + q * off), 0, keep_dims=True)
        a += 2 * q * off
        if SHIFT:
            mu -= tl.load(shift + j * D + d, mask=live, other=0.0)
        out = table + b * ((HEAD + 4 * D) * J)
        tl.store(out + j * RUN, constant, mask=there)
        tl.store(out + j * RUN + (1 if RUN > 1 else J), k, mask=there)
        tl.store(out + rows_at(HEAD, j, d, J, RUN), mu, mask=live)
        tl.store(out + rows_at(HEAD + D, j, d, J, RUN), tau / var, mask=live)
        tl.store(out + rows_at(HEAD + 2 * D, j, d, J, RUN), a, mask=live)
        tl.store(out + rows_at(HEAD + 3 * D, j, d, J, RUN), q, mask=live)


@triton.jit
def last_slopes(
    counters, logit, weight, mean, variance, below, centre, around, slope, shift, g_logit, g_mean, g_variance, g_score,
    g_offset, g_slope, g_shift, table, scale, offset_factor, slope_factor, eps, tau, tau_above, count,
    COUNTERS: tl.constexpr, J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr, OFFSET: tl.constexpr,
    SLOPE: tl.constexpr, SPREAD: tl.constexpr, SHIFT: tl.constexpr, GIVEN: tl.constexpr, MEAN: tl.constexpr,
    VARIANCE: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """`slopes` of the last iteration, after which so many counters are 0."""
    if tl.program_id(0) == 0:
        for n in tl.static_range(COUNTERS):
            tl.store(counters + n, 0)
    slopes(
        tl.program_id(0), tl.num_programs(0), table, 0, logit, weight, mean, variance, below, centre, around, slope,
        shift, g_logit, g_mean, g_variance, g_score, g_offset, g_slope, g_shift, table, scale, offset_factor,
        slope_factor, eps, tau, tau_above, count, J, D, RUN, False, OFFSET, SLOPE, SPREAD, SHIFT, GIVEN, MEAN,
        VARIANCE, WIDTH, TILE, AHEAD,
    )  # fmt: skip


@triton.jit
def child_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, SUM: tl.constexpr,
    POSES: tl.constexpr, AGAIN: tl.constexpr, BLOCK: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """POSES: g_u. SUM: s, which is read otherwise; both: g_u is linear in s, x + gate s sum_j p f / sigma^2 W."""
    D: tl.constexpr = C * H
    b, i, live, pose = child_lanes(u, I, C * K, BLOCK, AT)
    at = b * I + i
    g = tl.load(gate + at, mask=live, other=0.0)
    zero = tl.full((BLOCK,), 0.0, tl.float32)
    total, whole, linear, norm = repeat(zero, C * K), zero, repeat(zero, C * K), zero
    offset = zero
    if DENSITY:
        z = tl.load(normaliser + at, mask=live, other=0.0)
        if not SUM:
            offset = -g * tl.load(s + at, mask=live, other=0.0)
        if SHARED:
            offset += tl.load(g_z + at, mask=live, other=0.0)
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN + tl.arange(0, 1)
        f, ww = child_deviations(pose, w, own, row, b, i, j, I, R, live, G, J, C, K, H, RUN, OWN)
        a, q, k, constant, precision = load_slopes(row, None, J, D, RUN, DENSITY)
        p, ga = 1.0 / J, 0.0
        if FIRST:
            p = tl.load(first + i * J + j, mask=live, other=0.0)
        gw = benefit(k, f, a, q, D)
        if SCORE:
            gw += tl.load(g_score + b * J + j) * tl.load(beta + i * J + j, mask=live, other=0.0)
        if DENSITY:
            p = coupling(f, constant, precision, z, p, D, DENSITY)
            ga = p * (g * gw + offset)
        if POSES:
            total = add_pose_gradient(total, vote_gradient(g * p, ga, f, precision, a, q, D, DENSITY), ww, C, K, H)
        if SUM:
            whole += p * gw
        if SUM and DENSITY:
            norm += p
            if POSES:
                linear = add_pose_gradient(linear, scaled(p, f, precision, D), ww, C, K, H)
    if SUM:
        if DENSITY:
            whole /= norm
        tl.store(s + at, whole, mask=live)
        total = plus(total, g * whole, linear, C * K)
    if POSES:
        accumulate(out + at * (C * K), 0, live, total, C * K, C * K, AGAIN)


@triton.jit
def chunk_gradients(
    program, u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, parts, g_weight, B, I, R, steps,
    J: tl.constexpr, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, ONE: tl.constexpr,
    AGAIN: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """Sums of dL/da, times f and times f^2, over a chunk of children, for the gradients of prior, mean and variance.

    ONE: all children share one transform, whose gradient is summed along the way.
    """
    D: tl.constexpr = C * H
    of_row, of_parent, part = walk_of(program, B, J, ROWS, PARENTS)
    x, b, j, zero = walk_lanes(of_row, of_parent, ROWS, SPLIT, PARENTS)
    b = b.to(tl.int64)
    there = j < J
    live = (b < B) & there
    row = table + b * ((HEAD + 4 * D) * J) + j * RUN
    centre = load_table(row, HEAD, live, D, J, RUN)
    a, q, k, constant, precision = load_slopes(row, live, J, D, RUN, DENSITY)
    if DENSITY and SCORE:
        score = tl.load(g_score + b * J + j, mask=live, other=0.0)
    n, first_order, second_order = zero, repeat(zero, D), repeat(zero, D)
    g_w, transform = repeat(zero, K * H if ONE else 0), ()
    if ONE:
        transform = load(w + j * (K * H), H, there, K * H, H)
    lo = part * steps * SPLIT
    for t in tl.range(tl.minimum(steps, tl.cdiv(I - lo, SPLIT)), loop_unroll_factor=4 if D <= 4 else 1):
        i, here, known, live, f, uu = parent_deviations(
            u, w, own, transform, centre, b, j, there, lo, t, x, B, I, R, J, C, K, H, OWN, ONE, ROWS, SPLIT, AT
        )
        at = b * I + i
        g = tl.load(gate + at, mask=here, other=0.0)
        p, ga = 1.0 / J, 0.0
        if FIRST:
            p = tl.load(first + pair_at(i, j, J), mask=known, other=0.0)
        if DENSITY:
            z = tl.load(normaliser + at, mask=here, other=0.0)
            p = tl.where(live, coupling(f, constant, precision, z, p, D, DENSITY), 0.0)
            gw = benefit(k, f, a, q, D)
            if SCORE:
                gw += score * tl.load(beta + pair_at(i, j, J), mask=known, other=0.0)
            ga = logit_gradient(p, g, gw, s, g_z, at, here, SHARED)
            n += ga
            once, twice = (), ()
            for d in tl.static_range(D):
                y = ga * f[d]
                once = once + (first_order[d] + y,)
                twice = twice + (second_order[d] + y * f[d],)
            first_order, second_order = once, twice
        if ONE:
            gv = vote_gradient(g * p + zero, ga, f, precision, a, q, D, DENSITY)
            g_w = add_weight_gradient(g_w, uu, gv, C, K, H)
    b = (of_row * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    live = (b < B) & there
    chunk = part * B + b
    if DENSITY:
        out = parts + chunk * ((2 * D + 1) * J) + j
        tl.store(out, merged((n,), 1, ROWS, SPLIT)[0], mask=live)
        store(out + J, J, live, merged(first_order, D, ROWS, SPLIT), D)
        store(out + (1 + D) * J, J, live, merged(second_order, D, ROWS, SPLIT), D)
    if ONE:
        g_w = merged(g_w, K * H, ROWS, SPLIT)
        accumulate(g_weight + chunk * (J * K * H) + j * (K * H), 0, live, g_w, K * H, K * H, AGAIN)


@triton.jit
def parent_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, parts, g_weight, counter, B, I, R, steps, logit,
    weight, mean, variance, below, centre, around, slope, shift, g_logit, g_mean, g_variance, next_score, g_offset,
    g_slope, g_shift, next_table, scale, offset_factor, slope_factor, eps, tau, tau_above, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr, ROWS: tl.constexpr,
    SPLIT: tl.constexpr, PARENTS: tl.constexpr, DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    SHARED: tl.constexpr, ONE: tl.constexpr, AGAIN: tl.constexpr, OFFSET: tl.constexpr, SLOPE: tl.constexpr,
    SPREAD: tl.constexpr, SHIFT: tl.constexpr, GIVEN: tl.constexpr, MEAN: tl.constexpr, VARIANCE: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, AHEAD: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """Programs that walk over chunks of children; then, of an iteration that began with parents, those that finish the
    gradients of these by their `slopes`. Its own table may lie in the same place: nobody reads it any more."""
    chunks = tl.cdiv(I, steps * SPLIT)
    walks = tl.cdiv(B, ROWS) * tl.cdiv(J, PARENTS) * chunks
    p = tl.program_id(0)
    if p < walks:
        chunk_gradients(
            p, u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, parts, g_weight, B, I, R, steps, J, C,
            K, H, RUN, OWN, ROWS, SPLIT, PARENTS, DENSITY, FIRST, SCORE, SHARED, ONE, AGAIN, AT,
        )  # fmt: skip
        if DENSITY:
            arrive(counter)
    elif DENSITY:
        wait_for(counter, walks)
        slopes(
            p - walks, tl.num_programs(0) - walks, parts, chunks, logit, weight, mean, variance, below, centre, around,
            slope, shift, g_logit, g_mean, g_variance, next_score, g_offset, g_slope, g_shift, next_table, scale,
            offset_factor, slope_factor, eps, tau, tau_above, B * J, J, C * H, RUN, True, OFFSET, SLOPE, SPREAD, SHIFT,
            GIVEN, MEAN, VARIANCE, WIDTH, TILE, AHEAD,
        )  # fmt: skip


@triton.jit
def weight_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, out, g_own, g_beta, g_first, B, I, R, steps,
    J: tl.constexpr, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
    AGAIN: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """g_W: a program owns groups (rows of its tile) and parents, and walks over the children of the batch in them.

    PAIR: groups are children, so what belongs to a child and a parent, beta and the first coupling, is summed too.
    """
    D: tl.constexpr = C * H
    x, group, j, zero = walk_lanes(tl.program_id(0), tl.program_id(1), ROWS, SPLIT, PARENTS)
    G = I // R
    here, there = group < G, j < J
    live = here & there
    ww = load(w + group * (K * J * H) + j * H, J * H, live, K * H, H)
    if OWN:
        bias = load(own + group * (C * J * H) + j * H, J * H, live, D, H)
    total, of_bias, of_beta, of_first = repeat(zero, K * H), repeat(zero, D if OWN else 0), zero, zero
    lo = tl.program_id(2) * steps * SPLIT
    for step in range(tl.minimum(steps, tl.cdiv(B * R - lo, SPLIT))):
        t = step_at(lo, step, x, ROWS, SPLIT)
        now, known = here & (t < B * R), there & (t < B * R)
        live = now & there
        b = (t // R).to(tl.int64)
        i = group * R + t % R
        at = b * I + i
        uu = load_pose(u, b, i, I, now, C * K, AT)
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN
        centre = load_table(row, HEAD, known, D, J, RUN)
        if OWN:
            centre = less(centre, bias, D)
        f = deviations(uu, ww, centre, C, K, H)
        a, q, k, constant, precision = load_slopes(row, known, J, D, RUN, DENSITY)
        g = tl.load(gate + at, mask=now, other=0.0)
        p, ga, gw = 1.0 / J, 0.0, 0.0
        if FIRST:
            p = tl.load(first + pair_at(i, j, J), mask=live, other=0.0)
        if SCORE:
            score = tl.load(g_score + pair_at(b, j, J), mask=known, other=0.0)
        if DENSITY or (PAIR and FIRST):
            gw = benefit(k, f, a, q, D)
            if SCORE:
                gw += score * tl.load(beta + pair_at(i, j, J), mask=live, other=0.0)
        if DENSITY:
            z = tl.load(normaliser + at, mask=now, other=0.0)
            p = tl.where(live, coupling(f, constant, precision, z, p, D, DENSITY), 0.0)
            ga = logit_gradient(p, g, gw, s, g_z, at, now, SHARED)
        gv = vote_gradient(g * p + zero, ga, f, precision, a, q, D, DENSITY)
        total = add_weight_gradient(total, uu, gv, C, K, H)
        if OWN:
            of_bias = plus(of_bias, 1.0, gv, D)
        if PAIR and SCORE:
            of_beta += g * p * score
        if PAIR and FIRST:
            of_first += g * gw
    group = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    live = (group < G) & there
    chunk = tl.program_id(2).to(tl.int64) * J + j
    accumulate(out + (chunk * (K * G) + group) * H, G * H, live, merged(total, K * H, ROWS, SPLIT), K * H, H, AGAIN)
    if OWN:
        of_bias = merged(of_bias, D, ROWS, SPLIT)
        accumulate(g_own + (chunk * (C * G) + group) * H, G * H, live, of_bias, D, H, AGAIN)
    pair = (tl.program_id(2).to(tl.int64) * G + group) * J + j
    if PAIR and SCORE:
        accumulate(g_beta + pair, 0, live, merged((of_beta,), 1, ROWS, SPLIT), 1, 1, AGAIN)
    if PAIR and FIRST:
        store(g_first + pair, 0, live, merged((of_first,), 1, ROWS, SPLIT), 1)


@triton.jit
def pair_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, g_beta, g_first, B, I, R, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, ONE: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Gradients of beta and of the first coupling, where `weight_gradients` does not sum them."""
    D: tl.constexpr = C * H
    i = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * PARENTS + tl.arange(0, PARENTS)
    there = j < J
    of_beta = tl.full((PARENTS,), 0.0, tl.float32)
    of_first = of_beta
    p0 = 1.0 / J
    if ONE:
        transform = load(w + j * (K * H), H, there, K * H, H)
    elif K > 0:
        transform = load(w + i // R * (K * J * H) + j * H, J * H, there, K * H, H)
        if OWN:
            bias = load(own + i // R * (C * J * H) + j * H, J * H, there, D, H)
    if FIRST:
        p0 = tl.load(first + i * J + j, mask=there, other=0.0)
    for b in range(B):
        at = b * I + i
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN
        centre = load_table(row, HEAD, there, D, J, RUN)
        if K > 0:
            uu, ww = load(u + at * (C * K) + tl.arange(0, 1), 0, None, C * K, C * K), transform
            if OWN:
                centre = less(centre, bias, D)
        else:
            uu, ww = load(w + (at * J + j) * D, 0, there, D, D), ()
        f = deviations(uu, ww, centre, C, K, H)
        a, q, k, constant, precision = load_slopes(row, there, J, D, RUN, DENSITY)
        z = tl.load(normaliser + at) if DENSITY else 0.0
        p = coupling(f, constant, precision, z, p0, D, DENSITY)
        g = tl.load(gate + at)
        if SCORE:
            score = tl.load(g_score + b * J + j, mask=there, other=0.0)
            of_beta += g * p * score
        if FIRST:
            gw = benefit(k, f, a, q, D)
            if SCORE:
                gw += score * tl.load(beta + i * J + j, mask=there, other=0.0)
            of_first += g * gw
    if SCORE:
        accumulate(g_beta + i * J + j, 0, there, (of_beta,), 1, 1, AGAIN)
    if FIRST:
        tl.store(g_first + i * J + j, of_first, mask=there)


@triton.jit
def vote_gradients(
    v, table, first, normaliser, gate, beta, g_score, s, g_z, begin, B, I, R, J: tl.constexpr, C: tl.constexpr,
    H: tl.constexpr, RUN: tl.constexpr, T: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
    SHARED: tl.constexpr, ROWS: tl.constexpr, PARENTS: tl.constexpr,
):  # fmt: skip
    """The gradient of stored votes, of all T iterations at once, in the place of the votes.

    v: from example `begin` on, as `plan.votes_of` has it. Of each iteration: table, g_score (B, J), s and, SHARED, gate
    (B, I); of each but the first: normaliser and g_z (B, I).
    """
    D: tl.constexpr = C * H
    b = (begin + tl.program_id(0)).to(tl.int64)
    i = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    j = (tl.program_id(2) * PARENTS + tl.arange(0, PARENTS))[None, :]
    here, there = i < I, j < J
    live = here & there
    at = b * I + i
    vote = v + (((i // R).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * R + i % R) * (C * J * H) + j * H
    uu = load(vote, J * H, live, D, H)
    zero = tl.full((ROWS, PARENTS), 0.0, tl.float32)
    total = repeat(zero, D)
    for t in tl.static_range(T):
        row = table + (t * B + b) * ((HEAD + 4 * D) * J) + j * RUN
        f = deviations(uu, (), load_table(row, HEAD, there, D, J, RUN), 1, 0, D)
        a, q, k, constant, precision = load_slopes(row, there, J, D, RUN, t > 0)
        g = tl.load(gate + (t * B * I if SHARED else 0) + at, mask=here, other=0.0)
        p, ga = 1.0 / J, 0.0
        if t == 0 and FIRST:
            p = tl.load(first + i * J + j, mask=live, other=0.0)
        if t > 0:
            z = tl.load(normaliser + (t - 1) * B * I + at, mask=here, other=0.0)
            p = coupling(f, constant, precision, z, p, D, True)
            gw = benefit(k, f, a, q, D)
            if SCORE:
                score = tl.load(g_score + (t * B + b) * J + j, mask=there, other=0.0)
                gw += score * tl.load(beta + i * J + j, mask=live, other=0.0)
            ga = logit_gradient(p, g, gw, s + t * B * I, g_z + (t - 1) * B * I, at, here, SHARED)
        total = plus(total, 1.0, vote_gradient(g * p + zero, ga, f, precision, a, q, D, t > 0), D)
    accumulate(vote, J * H, live, total, D, H, False)
