r"""Backward kernels of `_fit_triton`. Votes and couplings are computed again; only Z (B, I) was kept.

With e = v - mean_j, N = n_j + eps, and g_x the gradient of an output x:
    Q = g_variance / N,   A = (g_mean - 2 eps mean Q) / N,   K = g_n - sum_d Q (variance - eps)
    dL/dw_ij = K_j + sum_d e (A + Q e)
    dL/dv    = w (A + 2 Q e) - dL/da (v - mu) / sigma^2
    dL/da_ij = p_ij [gate_i (dL/dw_ij - s_i) + g_Z_i],   s_i = sum_j p_ij dL/dw_ij
K, A and Q are moved to the centre mu of the density, so that one deviation f = v - mu serves both.

Each gradient is summed along a walk: s and g_u over parents (a child per lane), those of prior, mean and variance
over children (a parent per lane), g_W over the batch. Nothing is added atomically.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from ._fit_lanes import (
    AHEAD,
    HEAD,
    add_pose_gradient,
    add_weight_gradient,
    benefit,
    deviations,
    load,
    load_chunks,
    load_table,
    mahalanobis,
    plus,
    repeat,
    save,
    save_matrix,
    scaled,
    vote_gradient,
)


@triton.jit
def slopes(
    prior, centre, scale, weight, mean, variance, g_weight, g_mean, g_variance, bias, g_bias, table, eps, count,
    J: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr, DENSITY: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g_bias (B, D, J): the sum of w (A + 2 Q e) over children; e sums to eps mean, weighted."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = x < count
    b, j = x // J, x % J
    n = tl.load(weight + x, mask=live, other=0.0)
    divisor = tl.where(live, n + eps, 1.0)
    k = tl.load(g_weight + x, mask=live, other=0.0)
    out = table + b * ((HEAD + 4 * D) * J) + j * RUN
    if DENSITY:
        constant = tl.load(prior + x, mask=live, other=0.0)
    for d in tl.static_range(D):
        at = (b * D + d) * J + j
        p = out + (HEAD + d // RUN * RUN) * J + d % RUN
        m = tl.load(mean + at, mask=live, other=0.0)
        q = tl.load(g_variance + at, mask=live, other=0.0) / divisor
        a = tl.load(g_mean + at, mask=live, other=0.0) / divisor - 2 * eps * m * q / divisor
        k -= q * (tl.load(variance + at, mask=live, other=0.0) - eps)
        if BIAS:
            tl.store(g_bias + at, n * a + 2 * q * eps * m, mask=live)
        if DENSITY:
            mu = tl.load(centre + at, mask=live, other=0.0)
            var = tl.load(scale + at, mask=live, other=1.0)
            constant -= 0.5 * tl.log(var)
            shift = mu - m
            k += shift * (a + q * shift)
            a += 2 * q * shift
            m = mu
            tl.store(p + D * J, 1 / var, mask=live)
        if BIAS:
            m -= tl.load(bias + d * J + j, mask=live, other=0.0)
        tl.store(p, m, mask=live)
        tl.store(p + 2 * D * J, a, mask=live)
        tl.store(p + 3 * D * J, q, mask=live)
    if DENSITY:
        tl.store(out, constant, mask=live)
    tl.store(out + (1 if RUN > 1 else J), k, mask=live)


@triton.jit
def _coupling(f, constant, precision, z, first, D: tl.constexpr, DENSITY: tl.constexpr):
    """p_ij"""
    p = first
    if DENSITY:
        p = tl.exp(constant - 0.5 * mahalanobis(f, precision, D) - z)
    return p


@triton.jit
def child_sums(
    u, w, table, first, normaliser, gate, beta, g_score, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    z = 0.0
    if K > 0:
        pose = load(u + (b * I + i) * (C * K), 0, live, C * K, C * K)
    if DENSITY:
        z = tl.load(normaliser + b * I + i, mask=live, other=0.0)
    s = tl.full((BLOCK,), 0.0, tl.float32)
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        if K > 0:
            uu, ww = pose, load(w + j * (K * G * H) + i // R * H, G * H, live, K * H, H)
        else:
            uu, ww = load(w + ((b * J + j) * I + i) * D, 0, live, D, D), ()
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN + tl.arange(0, 1)
        precision = load_table(row, HEAD + D, None, D if DENSITY else 0, J, RUN)
        f = deviations(uu, ww, load_table(row, HEAD, None, D, J, RUN), C, K, H)
        p = 1.0 / J
        if FIRST:
            p = tl.load(first + i * J + j, mask=live, other=0.0)
        p = _coupling(f, tl.load(row), precision, z, p, D, DENSITY)
        a = load_table(row, HEAD + 2 * D, None, D, J, RUN)
        gw = benefit(tl.load(row + (1 if RUN > 1 else J)), f, a, load_table(row, HEAD + 3 * D, None, D, J, RUN), D)
        if SCORE:
            gw += tl.load(g_score + b * J + j) * tl.load(beta + i * J + j, mask=live, other=0.0)
        s += p * gw
    tl.store(out + b * I + i, s, mask=live)


@triton.jit
def child_gradients(
    u, w, table, first, normaliser, gate, beta, g_score, s, g_z, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """SUM: s, in which g_u is linear, is summed here too: g_u = x + gate s y with y = sum_j p f / sigma^2 W."""
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    at = b * I + i
    uu = load(u + at * (C * K), 0, live, C * K, C * K)
    g = tl.load(gate + at, mask=live, other=0.0)
    zero = tl.full((BLOCK,), 0.0, tl.float32)
    total, own, linear = repeat(zero, C * K), zero, repeat(zero, C * K)
    offset = zero
    if DENSITY:
        z = tl.load(normaliser + at, mask=live, other=0.0)
        if not SUM:
            offset = -g * tl.load(s + at, mask=live, other=0.0)
        if SHARED:
            offset += tl.load(g_z + at, mask=live, other=0.0)
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        ww = load(w + j * (K * G * H) + i // R * H, G * H, live, K * H, H)
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN + tl.arange(0, 1)
        f = deviations(uu, ww, load_table(row, HEAD, None, D, J, RUN), C, K, H)
        a = load_table(row, HEAD + 2 * D, None, D, J, RUN)
        q = load_table(row, HEAD + 3 * D, None, D, J, RUN)
        precision = load_table(row, HEAD + D, None, D if DENSITY else 0, J, RUN)
        p, ga = 1.0 / J, 0.0
        if FIRST:
            p = tl.load(first + i * J + j, mask=live, other=0.0)
        gw = benefit(tl.load(row + (1 if RUN > 1 else J)), f, a, q, D)
        if SCORE:
            gw += tl.load(g_score + b * J + j) * tl.load(beta + i * J + j, mask=live, other=0.0)
        if DENSITY:
            p = _coupling(f, tl.load(row), precision, z, p, D, DENSITY)
            ga = p * (g * gw + offset)
        total = add_pose_gradient(total, vote_gradient(g * p, ga, f, precision, a, q, D, DENSITY), ww, C, K, H)
        if SUM:
            own += p * gw
            if DENSITY:
                linear = add_pose_gradient(linear, scaled(p, f, precision, D), ww, C, K, H)
    if SUM:
        tl.store(s + at, own, mask=live)
        total = plus(total, g * own, linear, C * K)
    save(out + at * (C * K), 1, live, total, C * K)


@triton.jit
def parent_gradients(
    u, w, table, first, normaliser, gate, beta, g_score, s, g_z, parts, g_weight, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, ROWS: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """ONE: all children share one transform, whose gradient is summed along the way. Stored votes (K = 0): g_weight
    takes the gradient of each."""
    D: tl.constexpr = C * H
    b = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    j = (tl.program_id(1) * PARENTS + tl.arange(0, PARENTS))[None, :]
    here, there = b < B, j < J
    live = here & there
    zero = tl.full((ROWS, PARENTS), 0.0, tl.float32)
    row = table + b * ((HEAD + 4 * D) * J) + j * RUN
    centre = load_table(row, HEAD, live, D, J, RUN)
    a = load_table(row, HEAD + 2 * D, live, D, J, RUN)
    q = load_table(row, HEAD + 3 * D, live, D, J, RUN)
    precision = load_table(row, HEAD + D, live, D if DENSITY else 0, J, RUN)
    if DENSITY:
        constant = tl.load(row, mask=live, other=0.0)
        k = tl.load(row + (1 if RUN > 1 else J), mask=live, other=0.0)
        if SCORE:
            score = tl.load(g_score + b * J + j, mask=live, other=0.0)
    n, first_order, second_order = zero, repeat(zero, D), repeat(zero, D)
    g_w = repeat(zero, K * H)
    if ONE:
        transform = load(w + j * H, J * H, there, K * H, H)
    lo = tl.program_id(2) * steps
    for i in tl.range(lo, tl.minimum(lo + steps, I), loop_unroll_factor=4 if D <= 4 else 1):
        at = b * I + i
        if K == 0:
            uu, ww = load(w + (at * J + j) * D, 0, live, D, D), ()
        elif ONE:
            uu, ww = load(u + at * (C * K), 0, here, C * K, C * K), transform
        else:
            uu = load(u + at * (C * K), 0, here, C * K, C * K)
            ww = load(w + i // R * (K * J * H) + j * H, J * H, there, K * H, H)
        f = deviations(uu, ww, centre, C, K, H)
        g = tl.load(gate + at, mask=here, other=0.0)
        p, ga = 1.0 / J, 0.0
        if FIRST:
            p = tl.load(first + i * J + j, mask=there, other=0.0)
        if DENSITY:
            z = tl.load(normaliser + at, mask=here, other=0.0)
            p = tl.where(live, _coupling(f, constant, precision, z, p, D, DENSITY), 0.0)
            gw = benefit(k, f, a, q, D)
            if SCORE:
                gw += score * tl.load(beta + i * J + j, mask=there, other=0.0)
            ga = g * (gw - tl.load(s + at, mask=here, other=0.0))
            if SHARED:
                ga += tl.load(g_z + at, mask=here, other=0.0)
            ga = p * ga
            n += ga
            x, y = (), ()
            for d in tl.static_range(D):
                t = ga * f[d]
                x = x + (first_order[d] + t,)
                y = y + (second_order[d] + t * f[d],)
            first_order, second_order = x, y
        if ONE or K == 0:
            gv = vote_gradient(g * p + zero, ga, f, precision, a, q, D, DENSITY)
            if ONE:
                g_w = add_weight_gradient(g_w, uu, gv, C, K, H)
            else:
                save(g_weight + (at * J + j) * D, 1, live, gv, D)
    chunk = tl.program_id(2) * B + b
    if DENSITY:
        out = parts + chunk * ((2 * D + 1) * J) + j
        tl.store(out, n, mask=live)
        save(out + J, J, live, first_order, D)
        save(out + (1 + D) * J, J, live, second_order, D)
    if ONE:
        save_matrix(g_weight + chunk * (K * J * H) + j * H, J * H, live, g_w, K, H)


@triton.jit
def finish_parents(
    parts, scale, g_prior, g_mean, g_variance, g_bias, count, chunks, J: tl.constexpr, D: tl.constexpr,
    BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What moves a bias moves the votes away from the centre: its gradient loses that of the centre."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (b, d, j)
    live = x < count
    b, d, j = x // (D * J), x // J % D, x % J
    stride = (count // D) * (2 * D + 1)
    p = parts + b * ((2 * D + 1) * J) + j
    n = tl.full((BLOCK,), 0.0, tl.float32)
    first, second = n, n
    for k in range(0, chunks, AHEAD):
        own = load_chunks(p, stride, k, chunks, live, AHEAD)
        f = load_chunks(p + (1 + d) * J, stride, k, chunks, live, AHEAD)
        f2 = load_chunks(p + (1 + D + d) * J, stride, k, chunks, live, AHEAD)
        for c in tl.static_range(AHEAD):
            n += own[c]
            first += f[c]
            second += f2[c]
    precision = 1 / tl.load(scale + x, mask=live, other=1.0)
    tl.store(g_prior + b * J + j, n, mask=live & (d == 0))
    tl.store(g_mean + x, first * precision, mask=live)
    if BIAS:
        tl.store(g_bias + x, tl.load(g_bias + x, mask=live, other=0.0) - first * precision, mask=live)
    tl.store(g_variance + x, 0.5 * precision * (second * precision - n), mask=live)


@triton.jit
def weight_gradients(
    u, w, table, first, normaliser, gate, beta, g_score, s, g_z, out, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, ROWS: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """A program owns groups (rows of its tile) and parents, and walks over the children of the batch in them."""
    D: tl.constexpr = C * H
    group = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    j = (tl.program_id(1) * PARENTS + tl.arange(0, PARENTS))[None, :]
    here, there = group < I // R, j < J
    live = here & there
    ww = load(w + group * (K * J * H) + j * H, J * H, live, K * H, H)
    zero = tl.full((ROWS, PARENTS), 0.0, tl.float32)
    total = repeat(zero, K * H)
    lo = tl.program_id(2) * steps
    for t in range(lo, tl.minimum(lo + steps, B * R)):
        b = (t // R).to(tl.int64)
        i = group * R + t % R
        at = b * I + i
        uu = load(u + at * (C * K), 0, here, C * K, C * K)
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN
        f = deviations(uu, ww, load_table(row, HEAD, there, D, J, RUN), C, K, H)
        a = load_table(row, HEAD + 2 * D, there, D, J, RUN)
        q = load_table(row, HEAD + 3 * D, there, D, J, RUN)
        precision = load_table(row, HEAD + D, there, D if DENSITY else 0, J, RUN)
        g = tl.load(gate + at, mask=here, other=0.0)
        p, ga = 1.0 / J, 0.0
        if FIRST:
            p = tl.load(first + i * J + j, mask=live, other=0.0)
        if DENSITY:
            z = tl.load(normaliser + at, mask=here, other=0.0)
            constant = tl.load(row, mask=there, other=0.0)
            p = tl.where(live, _coupling(f, constant, precision, z, p, D, DENSITY), 0.0)
            gw = benefit(tl.load(row + (1 if RUN > 1 else J), mask=there, other=0.0), f, a, q, D)
            if SCORE:
                score = tl.load(g_score + b * J + j, mask=there, other=0.0)
                gw += score * tl.load(beta + i * J + j, mask=live, other=0.0)
            ga = g * (gw - tl.load(s + at, mask=here, other=0.0))
            if SHARED:
                ga += tl.load(g_z + at, mask=here, other=0.0)
            ga = p * ga
        gv = vote_gradient(g * p + zero, ga, f, precision, a, q, D, DENSITY)
        total = add_weight_gradient(total, uu, gv, C, K, H)
    save_matrix(out + (tl.program_id(2) * (I // R) + group) * (K * J * H) + j * H, J * H, live, total, K, H)


@triton.jit
def pair_gradients(
    u, w, table, first, normaliser, gate, beta, g_score, g_beta, g_first, B, I, R, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr,
):  # fmt: skip
    """Of what belongs to a child and a parent: beta, the first coupling."""
    D: tl.constexpr = C * H
    i = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * PARENTS + tl.arange(0, PARENTS)
    there = j < J
    of_beta = tl.full((PARENTS,), 0.0, tl.float32)
    of_first = of_beta
    p0 = 1.0 / J
    if K > 0:
        transform = load(w + i // R * (K * J * H) + j * H, J * H, there, K * H, H)
    if FIRST:
        p0 = tl.load(first + i * J + j, mask=there, other=0.0)
    for b in range(B):
        at = b * I + i
        if K > 0:
            uu, ww = load(u + at * (C * K) + tl.arange(0, 1), 0, None, C * K, C * K), transform
        else:
            uu, ww = load(w + (at * J + j) * D, 0, there, D, D), ()
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN
        f = deviations(uu, ww, load_table(row, HEAD, there, D, J, RUN), C, K, H)
        precision = load_table(row, HEAD + D, there, D if DENSITY else 0, J, RUN)
        z = tl.load(normaliser + at) if DENSITY else 0.0
        p = _coupling(f, tl.load(row, mask=there, other=0.0), precision, z, p0, D, DENSITY)
        g = tl.load(gate + at)
        if SCORE:
            score = tl.load(g_score + b * J + j, mask=there, other=0.0)
            of_beta += g * p * score
        if FIRST:
            a = load_table(row, HEAD + 2 * D, there, D, J, RUN)
            q = load_table(row, HEAD + 3 * D, there, D, J, RUN)
            gw = benefit(tl.load(row + (1 if RUN > 1 else J), mask=there, other=0.0), f, a, q, D)
            if SCORE:
                gw += score * tl.load(beta + i * J + j, mask=there, other=0.0)
            of_first += g * gw
    if SCORE:
        tl.store(g_beta + i * J + j, of_beta, mask=there)
    if FIRST:
        tl.store(g_first + i * J + j, of_first, mask=there)
