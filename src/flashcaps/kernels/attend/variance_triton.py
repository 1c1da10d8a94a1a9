r"""Kernels of `_spread`. Forward is Welford's, child by child:

    n_j += r_ij,   e = v_ij - mean_j,   mean_j += e r_ij / n_j,   m_j += r_ij e (v_ij - mean_j)

Backward, with e = v_ij - mean_j, g the gradient of m and k that of n (mean is where m is least, so it has none):

    rho_ij = k_j + sum_d g_j e^2,   alpha_ij = r_ij (rho_ij - sum_j r_ij rho_ij),   gv_ij = 2 r_ij e g_j + alpha_ij q_j
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.formed_triton import coupling, over_pose, within


@triton.jit
def spread(
    votes, query, n, mean, m, B, J, children, again, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, ASKED: tl.constexpr,
):  # fmt: skip
    """again: go on from what an earlier block of children left."""
    b = tl.program_id(0).to(tl.int64)
    among_votes, among_parents, live = within(C, J, H, CP, JP, HP)
    j = tl.arange(0, JP)
    mine = b * (J * C * H) + among_parents
    total = tl.load(n + b * J + j, mask=(j < J) & (again > 0), other=0.0)
    centre = tl.load(mean + mine, mask=live & (again > 0), other=0.0)
    squares = tl.load(m + mine, mask=live & (again > 0), other=0.0)
    q = centre
    if ASKED:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
    for i in range(children):
        v = tl.load(votes + (i * B + b) * (J * C * H) + among_votes, mask=live, other=0.0)
        r = coupling(v, q, q, i, J, JP, ASKED, False, False)
        total += r
        part = r / tl.maximum(total, 1e-30)  # of nobody so far: not 0 / 0
        e = v - centre
        centre += part[None, :, None] * e
        squares += r[None, :, None] * e * (v - centre)
    tl.store(n + b * J + j, total, mask=j < J)
    tl.store(mean + mine, centre, mask=live)
    tl.store(m + mine, squares, mask=live)


@triton.jit
def spread_backward(
    votes, query, mean, gn, gm, gq, B, J, children, again, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, ASKED: tl.constexpr,
):  # fmt: skip
    """Votes give way to their gradients; gq adds up over blocks."""
    b = tl.program_id(0).to(tl.int64)
    among_votes, among_parents, live = within(C, J, H, CP, JP, HP)
    j = tl.arange(0, JP)
    mine = b * (J * C * H) + among_parents
    centre = tl.load(mean + mine, mask=live, other=0.0)
    g = tl.load(gm + mine, mask=live, other=0.0).to(tl.float32)
    k = tl.load(gn + b * J + j, mask=j < J, other=0.0).to(tl.float32)
    q, of_query = centre, centre
    if ASKED:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
        of_query = tl.load(gq + mine, mask=live & (again > 0), other=0.0)
    for i in range(children):
        at = votes + (i * B + b) * (J * C * H) + among_votes
        v = tl.load(at, mask=live, other=0.0)
        r = coupling(v, q, q, i, J, JP, ASKED, False, False)
        e = v - centre
        gv = 2 * r[None, :, None] * e * g
        if ASKED:
            rho = k + over_pose(g * e * e)
            alpha = (r * (rho - tl.sum(r * rho, axis=0)))[None, :, None]
            gv += alpha * q
            of_query += alpha * v
        tl.store(at, gv, mask=live)
    if ASKED:
        tl.store(gq + mine, of_query, mask=live)
