r"""Backward kernels of `_fit_triton`. Votes and couplings are computed again; only Z (B, I) was kept.

With e = v - mean_j, N = n_j + eps, and g_x the gradient of an output x:
    Q = g_variance / N,   A = (g_mean - 2 eps mean Q) / N,   K = g_n - sum_d Q (variance - eps)
    dL/dw_ij = K_j + sum_d e (A + Q e)
    dL/dv    = w (A + 2 Q e) - dL/da (v - mu) / sigma^2
    dL/da_ij = p_ij [gate_i (dL/dw_ij - s_i) + g_Z_i],   s_i = sum_j p_ij dL/dw_ij
s is divided by sum_j p_ij: that is 1, but for the rounding of Z, which dL/dw - s would multiply by all of dL/dw.
K, A and Q are moved to the centre mu of the density, so that one deviation f = v - mu serves both.

Each gradient is summed along a walk: s and g_u over parents (a child per lane), those of prior, mean and variance
over children (a parent per lane), g_W over the batch. Nothing is added atomically. AGAIN: an iteration adds to what
those after it found, in place.
"""

# Kernels grow tuples as their loops unroll.
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from .lanes import (
    HEAD,
    add_pose_gradient,
    add_weight_gradient,
    benefit,
    deviations,
    gather,
    less,
    load,
    load_table,
    mahalanobis,
    merged,
    pair_at,
    plus,
    pose_at,
    repeat,
    save,
    scaled,
    step_at,
    vote_gradient,
)


@triton.jit
def coupling(f, constant, precision, z, first, D: tl.constexpr, DENSITY: tl.constexpr):
    """p_ij"""
    p = first
    if DENSITY:
        p = tl.exp(constant - 0.5 * mahalanobis(f, precision, D) - z)
    return p


@triton.jit
def child_sums(
    u, w, own, table, first, normaliser, gate, beta, g_score, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, BLOCK: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    z = 0.0
    if K > 0:
        pose = load(u + pose_at(b, i, I, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX), 0, live, C * K, C * K)
    if DENSITY:
        z = tl.load(normaliser + b * I + i, mask=live, other=0.0)
    s = tl.full((BLOCK,), 0.0, tl.float32)
    norm = s
    for j in tl.range(J, loop_unroll_factor=4 if D <= 4 else 1):
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN + tl.arange(0, 1)
        centre = load_table(row, HEAD, None, D, J, RUN)
        if K > 0:
            uu, ww = pose, load(w + j * (K * G * H) + i // R * H, G * H, live, K * H, H)
            if OWN:
                centre = less(centre, load(own + j * (C * G * H) + i // R * H, G * H, live, D, H), D)
        else:
            uu, ww = load(w + ((b * I + i) * J + j) * D, 0, live, D, D), ()
        precision = load_table(row, HEAD + D, None, D if DENSITY else 0, J, RUN)
        f = deviations(uu, ww, centre, C, K, H)
        p = 1.0 / J
        if FIRST:
            p = tl.load(first + i * J + j, mask=live, other=0.0)
        p = coupling(f, tl.load(row), precision, z, p, D, DENSITY)
        a = load_table(row, HEAD + 2 * D, None, D, J, RUN)
        gw = benefit(tl.load(row + (1 if RUN > 1 else J)), f, a, load_table(row, HEAD + 3 * D, None, D, J, RUN), D)
        if SCORE:
            gw += tl.load(g_score + b * J + j) * tl.load(beta + i * J + j, mask=live, other=0.0)
        s += p * gw
        norm += p
    if DENSITY:
        s /= norm
    tl.store(out + b * I + i, s, mask=live)


@triton.jit
def child_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, out, I, R, G: tl.constexpr, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, SUM: tl.constexpr,
    AGAIN: tl.constexpr, BLOCK: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """SUM: s, in which g_u is linear, is summed here too: g_u = x + gate s y with y = sum_j p f / sigma^2 W."""
    D: tl.constexpr = C * H
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < I
    at = b * I + i
    uu = load(u + pose_at(b, i, I, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX), 0, live, C * K, C * K)
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
        ww = load(w + j * (K * G * H) + i // R * H, G * H, live, K * H, H)
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN + tl.arange(0, 1)
        centre = load_table(row, HEAD, None, D, J, RUN)
        if OWN:
            centre = less(centre, load(own + j * (C * G * H) + i // R * H, G * H, live, D, H), D)
        f = deviations(uu, ww, centre, C, K, H)
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
            p = coupling(f, tl.load(row), precision, z, p, D, DENSITY)
            ga = p * (g * gw + offset)
        total = add_pose_gradient(total, vote_gradient(g * p, ga, f, precision, a, q, D, DENSITY), ww, C, K, H)
        if SUM:
            whole += p * gw
            if DENSITY:
                norm += p
                linear = add_pose_gradient(linear, scaled(p, f, precision, D), ww, C, K, H)
    if SUM:
        if DENSITY:
            whole /= norm
        tl.store(s + at, whole, mask=live)
        total = plus(total, g * whole, linear, C * K)
    gather(out + at * (C * K), 0, live, total, C * K, C * K, AGAIN)


@triton.jit
def parent_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, parts, g_weight, B, I, R, steps, J: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, ONE: tl.constexpr,
    AGAIN: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """ONE: all children share one transform, whose gradient is summed along the way."""
    D: tl.constexpr = C * H
    x = tl.arange(0, ROWS * SPLIT)[:, None]
    b = (tl.program_id(0) * ROWS + x // SPLIT).to(tl.int64)
    j = (tl.program_id(1) * PARENTS + tl.arange(0, PARENTS))[None, :]
    there = j < J
    live = (b < B) & there
    zero = tl.full((ROWS * SPLIT, PARENTS), 0.0, tl.float32)
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
    g_w = repeat(zero, K * H if ONE else 0)
    if ONE:
        transform = load(w + j * H, J * H, there, K * H, H)
    lo = tl.program_id(2) * steps * SPLIT
    for t in tl.range(tl.minimum(steps, tl.cdiv(I - lo, SPLIT)), loop_unroll_factor=4 if D <= 4 else 1):
        i = step_at(lo, t, x, ROWS, SPLIT)
        here, known = (b < B) & (i < I), there & (i < I)
        live = here & there
        at = b * I + i
        middle = centre
        if K == 0:
            uu, ww = load(w + (at * J + j) * D, 0, live, D, D), ()
        elif ONE:
            uu, ww = load(u + (b * I + i) * (C * K), 0, here, C * K, C * K), transform
        else:
            uu = load(u + pose_at(b, i, I, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX), 0, here, C * K, C * K)
            ww = load(w + i // R * (K * J * H) + j * H, J * H, known, K * H, H)
            if OWN:
                middle = less(centre, load(own + i // R * (C * J * H) + j * H, J * H, known, D, H), D)
        f = deviations(uu, ww, middle, C, K, H)
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
            ga = g * (gw - tl.load(s + at, mask=here, other=0.0))
            if SHARED:
                ga += tl.load(g_z + at, mask=here, other=0.0)
            ga = p * ga
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
    b = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    live = (b < B) & there
    chunk = tl.program_id(2) * B + b
    if DENSITY:
        out = parts + chunk * ((2 * D + 1) * J) + j
        tl.store(out, merged((n,), 1, ROWS, SPLIT)[0], mask=live)
        save(out + J, J, live, merged(first_order, D, ROWS, SPLIT), D)
        save(out + (1 + D) * J, J, live, merged(second_order, D, ROWS, SPLIT), D)
    if ONE:
        g_w = merged(g_w, K * H, ROWS, SPLIT)
        gather(g_weight + chunk * (J * K * H) + j * (K * H), 0, live, g_w, K * H, K * H, AGAIN)


@triton.jit
def weight_gradients(
    u, w, own, table, first, normaliser, gate, beta, g_score, s, g_z, out, g_own, g_beta, g_first, B, I, R, steps,
    J: tl.constexpr, C: tl.constexpr, K: tl.constexpr, H: tl.constexpr, RUN: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, PARENTS: tl.constexpr,
    DENSITY: tl.constexpr, FIRST: tl.constexpr, SCORE: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
    AGAIN: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, SB: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, KERNEL: tl.constexpr,
    ST: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
):  # fmt: skip
    """A program owns groups (rows of its tile) and parents, and walks over the children of the batch in them.

    PAIR: groups are children, so what belongs to a child and a parent, beta and the first coupling, is summed too.
    """
    D: tl.constexpr = C * H
    x = tl.arange(0, ROWS * SPLIT)[:, None]
    group = tl.program_id(0) * ROWS + x // SPLIT
    j = (tl.program_id(1) * PARENTS + tl.arange(0, PARENTS))[None, :]
    G = I // R
    here, there = group < G, j < J
    live = here & there
    ww = load(w + group * (K * J * H) + j * H, J * H, live, K * H, H)
    if OWN:
        bias = load(own + group * (C * J * H) + j * H, J * H, live, D, H)
    zero = tl.full((ROWS * SPLIT, PARENTS), 0.0, tl.float32)
    total, of_bias, of_beta, of_first = repeat(zero, K * H), repeat(zero, D if OWN else 0), zero, zero
    lo = tl.program_id(2) * steps * SPLIT
    for step in range(tl.minimum(steps, tl.cdiv(B * R - lo, SPLIT))):
        t = step_at(lo, step, x, ROWS, SPLIT)
        now, known = here & (t < B * R), there & (t < B * R)
        live = now & there
        b = (t // R).to(tl.int64)
        i = group * R + t % R
        at = b * I + i
        uu = load(u + pose_at(b, i, I, C * K, OH, OW, SB, PY, PX, KERNEL, ST, SY, SX), 0, now, C * K, C * K)
        row = table + b * ((HEAD + 4 * D) * J) + j * RUN
        centre = load_table(row, HEAD, known, D, J, RUN)
        if OWN:
            centre = less(centre, bias, D)
        f = deviations(uu, ww, centre, C, K, H)
        a = load_table(row, HEAD + 2 * D, known, D, J, RUN)
        q = load_table(row, HEAD + 3 * D, known, D, J, RUN)
        precision = load_table(row, HEAD + D, known, D if DENSITY else 0, J, RUN)
        g = tl.load(gate + at, mask=now, other=0.0)
        p, ga, gw = 1.0 / J, 0.0, 0.0
        if FIRST:
            p = tl.load(first + pair_at(i, j, J), mask=live, other=0.0)
        if SCORE:
            score = tl.load(g_score + pair_at(b, j, J), mask=known, other=0.0)
        if DENSITY or (PAIR and FIRST):
            gw = benefit(tl.load(row + (1 if RUN > 1 else J), mask=known, other=0.0), f, a, q, D)
            if SCORE:
                gw += score * tl.load(beta + pair_at(i, j, J), mask=live, other=0.0)
        if DENSITY:
            z = tl.load(normaliser + at, mask=now, other=0.0)
            constant = tl.load(row, mask=known, other=0.0)
            p = tl.where(live, coupling(f, constant, precision, z, p, D, DENSITY), 0.0)
            ga = g * (gw - tl.load(s + at, mask=now, other=0.0))
            if SHARED:
                ga += tl.load(g_z + at, mask=now, other=0.0)
            ga = p * ga
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
    gather(out + (chunk * (K * G) + group) * H, G * H, live, merged(total, K * H, ROWS, SPLIT), K * H, H, AGAIN)
    if OWN:
        of_bias = merged(of_bias, D, ROWS, SPLIT)
        gather(g_own + (chunk * (C * G) + group) * H, G * H, live, of_bias, D, H, AGAIN)
    pair = (tl.program_id(2).to(tl.int64) * G + group) * J + j
    if PAIR and SCORE:
        gather(g_beta + pair, 0, live, merged((of_beta,), 1, ROWS, SPLIT), 1, 1, AGAIN)
    if PAIR and FIRST:
        save(g_first + pair, 0, live, merged((of_first,), 1, ROWS, SPLIT), 1)
