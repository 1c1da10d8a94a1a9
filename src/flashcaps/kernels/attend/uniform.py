r"""Triton kernels of a step whose couplings all equal `share`: three plain matrix products.

    s_j = share sum_i u_i W_ij        gu_i = share sum_j gs_j W_ij^T        gW_ij = share sum_b u_i^T gs_j

In matrices: rows (b, c), columns n = (i, k) of poses and m = (j, h) of parents. A library's product would need a
transposed copy of u first. COPIED: W is a copy in the order in which many rows read it, along the axis that is summed
over, as the matrix units take TF32: (m, n) for s, (n, m) for gu. AT and kinds of programs are as in `attend.kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.order_triton import arrive, wait_for
from ..common.patches_triton import child_at, place_at
from .epilogue import finish

HALF = tl.constexpr(tl.bfloat16)


@triton.jit
def _capsules_at(r, n, rows, N: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Addresses in u (B, G, C, d), or in s (B, J, C, h), at rows (b, c) and columns (capsule, element); their mask."""
    inside = (r < rows)[:, None] & (n < N * K)[None, :]
    if C == 1:
        return r[:, None] * (N * K) + n[None, :], inside
    return (r // C * (N * C * K) + r % C * K)[:, None] + (n // K * (C * K) + n % K)[None, :], inside


@triton.jit
def _poses_at(r, n, rows, G: tl.constexpr, C: tl.constexpr, D: tl.constexpr, AT: tl.constexpr):
    """The same in u, which may lie in an image."""
    at, inside = _capsules_at(r, n, rows, G, C, D)
    if AT[0] * AT[1] * AT[5] > 1 or AT[2] != G * C * D:
        place = place_at(r // C, AT[0], AT[1], AT[2], AT[3], AT[4]) + r % C * D
        at = place[:, None] + (child_at(n // D, AT[5], AT[6], AT[7], AT[8]) + n % D)[None, :]
    return at, inside


@triton.jit
def _weights_at(n, m, G: tl.constexpr, J: tl.constexpr, D: tl.constexpr, H: tl.constexpr):
    """Addresses in W (J, d, G, h) at rows n and columns m, and their mask, (N, M)."""
    row = n % D * G + n // D
    at = row[:, None] * H + (m // H * (D * G * H) + m % H)[None, :]
    return at, (n < G * D)[:, None] & (m < J * H)[None, :]


@triton.jit
def _matrix_at(a, b, A: tl.constexpr, B: tl.constexpr):
    """Addresses in a matrix (A, B) at rows a and columns b, and their mask."""
    return a[:, None] * B + b[None, :], (a < A)[:, None] & (b < B)[None, :]


@triton.jit(do_not_specialize=["more"])
def uniform_forward(
    u, w, parts, counters, B, tiles, chunks, share,
    bias, beta, s, total, out, before, query, more, scale, next_scale, eps,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr, RP: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr, KIND: tl.constexpr,
    BIAS: tl.constexpr, STORE: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """Partial s of `tiles` tiles of columns n -> (chunks, B, J, C, h), and `finish` (bias to eps, RP to STORE)."""
    rows, wide = B * C, tl.cdiv(J * H, M)
    p, sums = tl.program_id(0), wide * tl.cdiv(rows, R) * chunks
    if p < sums:
        m = p % wide * M + tl.arange(0, M)
        r = p // wide % tl.cdiv(rows, R) * R + tl.arange(0, R)
        chunk = p // wide // tl.cdiv(rows, R)
        first = chunk * tiles
        s_m = tl.zeros((R, M), tl.float32)
        for t in tl.range(first, tl.minimum(first + tiles, tl.cdiv(G * D, N)), num_stages=STAGES):
            n = t * N + tl.arange(0, N)
            u_at, u_in = _poses_at(r, n, rows, G, C, D, AT)
            x = tl.load(u + u_at, u_in, 0.0)
            if COPIED:
                w_at, w_in = _matrix_at(m, n, J * H, G * D)
                w_n = tl.trans(tl.load(w + w_at, w_in, 0.0))
            else:
                w_at, w_in = _weights_at(n, m, G, J, D, H)
                w_n = tl.load(w + w_at, w_in, 0.0)
            s_m = tl.dot(x, w_n, s_m, input_precision=PRECISION)
        p_at, p_in = _capsules_at(r, m, rows, J, C, H)
        tl.store(parts + chunk.to(tl.int64) * rows * (J * H) + p_at, s_m * share, p_in)
        arrive(counters)
    else:
        wait_for(counters, sums)
        finish(
            p - sums, tl.num_programs(0) - sums, parts, chunks, B * J, J, bias, beta, s, total, out, before, query,
            more, scale, next_scale, eps, C * H, RP, RT, CT, KIND, BIAS, STORE,
        )  # fmt: skip


@triton.jit
def _halves(x):
    """fp32 as the sum of two bf16: 16 bits of its mantissa."""
    high = x.to(HALF)
    return high, (x - high.to(tl.float32)).to(HALF)


@triton.jit
def _add_product(
    total, x, x_rest, gs, r, m, rows, J: tl.constexpr, C: tl.constexpr, H: tl.constexpr, HALVES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """total + x gs, of a tile x (N, R) and rows r, columns m of gs."""
    p_at, p_in = _capsules_at(r, m, rows, J, C, H)
    g = tl.load(gs + p_at, p_in, 0.0)
    if HALVES:
        g, g_rest = _halves(g)
        total = tl.dot(x_rest, g, total)
        total = tl.dot(x, g_rest, total)
        return tl.dot(x, g, total)
    return tl.dot(x, g, total, input_precision=PRECISION)


@triton.jit
def _store_weights(gw, total, n, m, again, G: tl.constexpr, J: tl.constexpr, D: tl.constexpr, H: tl.constexpr):
    w_at, w_in = _weights_at(n, m, G, J, D, H)
    tl.store(gw + w_at, total + tl.load(gw + w_at, w_in & (again > 0), 0.0), w_in)


@triton.jit(do_not_specialize=["again"])
def uniform_backward(
    gs, u, w, gu, gu_out, gw, gw_out, counters, B, tiles, chunks, poses, share, share_of_weight, again,
    G: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, M: tl.constexpr, COPIED: tl.constexpr, TWICE: tl.constexpr,
    HALVES: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, POSES: tl.constexpr, WEIGHTS: tl.constexpr,
    RP: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    """Up to three kinds of programs:

    POSES: gu_out, with what gu holds if `again`. `poses` programs.
    WEIGHTS: partial gW of `tiles` tiles of rows -> (chunks, J, d, G, h), added to what it holds if `again`. The sum is
        over rows, across which neither factor lies: the matrix units take TF32 only along it, so that each number is
        moved on its own. HALVES: as sums of two bf16, which they take either way, in three products; poses are
        multiplied by the share before, since what is computed is read whole and turned after, a bare load as it comes.
        TWICE: M columns and M more, for the same poses; a warp reads 64 columns in whole sectors of 4 x 4 poses.
    The rest wait for these, and add up partial gW to gw_out.
    """
    p, rows, wide = tl.program_id(0), B * C, tl.cdiv(G * D, N)
    across = tl.cdiv(J * H, M + M * TWICE)
    sums = across * wide * chunks
    if POSES:  # noqa: SIM102  # a constant of the compiler, not of the program
        if p < poses:
            n = p % wide * N + tl.arange(0, N)
            r = p // wide * R + tl.arange(0, R)
            total = tl.zeros((R, N), tl.float32)
            for t in tl.range(0, tl.cdiv(J * H, M), num_stages=STAGES):
                m = t * M + tl.arange(0, M)
                p_at, p_in = _capsules_at(r, m, rows, J, C, H)
                if COPIED:
                    w_at, w_in = _matrix_at(n, m, G * D, J * H)
                else:
                    w_at, w_in = _weights_at(n, m, G, J, D, H)
                w_n = tl.trans(tl.load(w + w_at, w_in, 0.0))
                total = tl.dot(tl.load(gs + p_at, p_in, 0.0), w_n, total, input_precision=PRECISION)
            u_at, u_in = _capsules_at(r, n, rows, G, C, D)
            total = total * share + tl.load(gu + u_at, u_in & (again > 0), 0.0)
            tl.store(gu_out + u_at, total.to(gu_out.dtype.element_ty), u_in)
    if WEIGHTS:
        if (p >= poses) & (p < poses + sums):
            k = p - poses
            m = k % across * (M + M * TWICE) + tl.arange(0, M)
            n = k // across % wide * N + tl.arange(0, N)
            first = k // across // wide * tiles
            of_first = tl.zeros((N, M), tl.float32)
            if TWICE:
                of_second = tl.zeros((N, M), tl.float32)
            for t in tl.range(first, tl.minimum(first + tiles, tl.cdiv(rows, R)), num_stages=STAGES):
                r = t * R + tl.arange(0, R)
                u_at, u_in = _poses_at(r, n, rows, G, C, D, AT)
                x = tl.load(u + u_at, u_in, 0.0)
                if HALVES:
                    x, x_rest = _halves(tl.trans(x * share_of_weight))
                else:
                    x = tl.trans(x)
                    x_rest = x
                of_first = _add_product(of_first, x, x_rest, gs, r, m, rows, J, C, H, HALVES, PRECISION)
                if TWICE:
                    of_second = _add_product(of_second, x, x_rest, gs, r, m + M, rows, J, C, H, HALVES, PRECISION)
            scale = 1.0 if HALVES else share_of_weight
            part = gw + (k // across // wide).to(tl.int64) * J * G * (D * H)
            _store_weights(part, of_first * scale, n, m, again, G, J, D, H)
            if TWICE:
                _store_weights(part, of_second * scale, n, m + M, again, G, J, D, H)
            arrive(counters)
        elif p >= poses + sums:
            wait_for(counters, sums)
            finish(
                p - poses - sums, tl.num_programs(0) - poses - sums, gw, chunks, J * D * G, 1, gw, gw, gw, gw, gw_out,
                gw, gw, 0, 1.0, 1.0, 0.0, H, RP, RT, CT, "sum", False, False,
            )  # fmt: skip
