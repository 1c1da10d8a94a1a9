r"""Kernels of `_attend_votes`: with rho_ij = gs_j . v_ij,

    alpha_ij = c_ij (rho_ij - sum_j c_ij rho_ij),   gv_ij = c_ij gs_j + alpha_ij q_j,   gq_j = sum_i alpha_ij v_ij
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common.formed_triton import coupling, over_pose, within


@triton.jit
def attend_votes(
    votes, query, logits, s, B, J, children, first, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, ASKED: tl.constexpr, PRIOR: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    """s adds up over blocks, of which this begins with child `first`."""
    b = tl.program_id(0).to(tl.int64)
    among_votes, among_parents, live = within(C, J, H, CP, JP, HP)
    mine = b * (J * C * H) + among_parents
    total = tl.load(s + mine, mask=live & (first > 0), other=0.0)
    q = total
    if ASKED:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
    for i in range(children):
        v = tl.load(votes + (i * B + b) * (J * C * H) + among_votes, mask=live, other=0.0)
        total += coupling(v, q, logits, first + i, J, JP, ASKED, PRIOR, LEAKY)[None, :, None] * v
    tl.store(s + mine, total, mask=live)


@triton.jit
def attend_votes_backward(
    votes, query, logits, gs, gq, ga, B, J, children, first, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, ASKED: tl.constexpr, PRIOR: tl.constexpr, LEAKY: tl.constexpr,
    DETACH: tl.constexpr,
):  # fmt: skip
    """Votes give way to their gradients; gq adds up over blocks; ga (B, children, J): the logits', of each example."""
    b = tl.program_id(0).to(tl.int64)
    among_votes, among_parents, live = within(C, J, H, CP, JP, HP)
    j = tl.arange(0, JP)
    mine = b * (J * C * H) + among_parents
    g = tl.load(gs + mine, mask=live, other=0.0).to(tl.float32)
    q, of_query = g, g
    if ASKED:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
        of_query = tl.load(gq + mine, mask=live & (first > 0), other=0.0)
    for i in range(children):
        at = votes + (i * B + b) * (J * C * H) + among_votes
        v = tl.load(at, mask=live, other=0.0)
        c = coupling(v, q, logits, first + i, J, JP, ASKED, PRIOR, LEAKY)
        gv = c[None, :, None] * g
        if ASKED or PRIOR:
            rho = over_pose(g * v)
            alpha = c * (rho - tl.sum(c * rho, axis=0))
            if PRIOR:
                tl.store(ga + (b * children + i) * J + j, alpha, mask=j < J)
            if ASKED:
                of_query += alpha[None, :, None] * v
                if not DETACH:
                    gv += alpha[None, :, None] * q
        tl.store(at, gv, mask=live)
    if ASKED:
        tl.store(gq + mine, of_query, mask=live)
