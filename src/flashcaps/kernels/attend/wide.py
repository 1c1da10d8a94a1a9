r"""`attend` for wide poses, whose tiles would not fit the registers of `attend.kernels`.

    a_ij = l_ij + v_ij . q_j,   c_ij = softmax_j(a_ij),   s_j = sum_i c_ij v_ij
    rho_ij = gs_j . v_ij,   alpha_ij = c_ij (rho_ij - sum_j c_ij rho_ij)
    gv_ij = c_ij gs_j + alpha_ij q_j,   gq_j = sum_i alpha_ij v_ij

Votes are formed a block of children at a time (`common.formed`), again for each iteration and for the backward pass:
more products than with stored votes, and the memory of a block. Couplings are never stored. A program has one example's
parents and walks through the block's children. A child's votes are (C, J, H), the rows and columns of their poses
around the parents. Constants: QUERY, LOGITS: what is given. LEAKY: one more logit of 0, whose coupling is dropped.
DETACH: votes get no gradient through the agreement.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.formed import Gradients, blocks, constants
from ..common.replay import launch
from ..common.rows import empty_fp32


def attend_wide(u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool) -> Tensor:
    """s (B, J, D) in fp32; arguments as `attend`'s."""
    s = empty_fp32(u, u.shape[0], weight.shape[0], u.shape[3] * weight.shape[3])
    options = {"QUERY": query is not None, "LOGITS": logits is not None, "LEAKY": leaky, **constants(u, weight)}
    q, prior = (s if x is None else x.contiguous() for x in (query, logits))  # s stands for what is not read
    for block in blocks(u, weight):
        votes = block.votes
        launch(wide_sum, (u.shape[0],))(votes, q, prior, s, *s.shape[:2], votes.shape[0], block.first, **options)
    return s


def attend_wide_backward(
    gs: Tensor, u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool, detach: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gu, gW, and in fp32 gq and gl, whatever those are where there is no query or are no logits."""
    (b, j, _), into, gl = gs.shape, Gradients(u, weight), []
    gq = empty_fp32(u, *(() if query is None else query.shape))
    options = {"QUERY": query is not None, "LOGITS": logits is not None, "LEAKY": leaky, "DETACH": detach}
    q, prior = (gs if x is None else x.contiguous() for x in (query, logits))
    for block in blocks(u, weight):
        votes = block.votes
        ga = empty_fp32(u, b if logits is not None else 0, votes.shape[0], j)
        launch(wide_gradient, (b,))(
            votes, q, prior, gs, gq, ga, b, j, votes.shape[0], block.first, **options, **constants(u, weight)
        )
        into.take(block, votes)
        if logits is not None:
            gl.append(ga.sum(0))
    return *into.laid_out_like(u, weight), gq, torch.cat(gl) if gl else gq


@triton.jit
def example_at(J, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr, HP: tl.constexpr):
    """The program's example b, parents j, where elements lie among a child's votes (C, J, H) and among parents
    (B, J, C H), and which exist, as (CP, JP, HP).
    """
    b, parents = tl.program_id(0).to(tl.int64), tl.arange(0, JP)
    c, j, h = tl.arange(0, CP)[:, None, None], parents[None, :, None], tl.arange(0, HP)[None, None, :]
    mine = b * (J * C * H) + ((j * C + c) * H + h)
    return b, parents, (c * J + j) * H + h, mine, (c < C) & (j < J) & (h < H)


@triton.jit
def over_pose(x):
    """(C, J, H) -> (J,)"""
    return tl.sum(tl.sum(x, axis=2), axis=0)


@triton.jit
def coupling(
    v, q, logits, i, J, JP: tl.constexpr, QUERY: tl.constexpr, LOGITS: tl.constexpr, LEAKY: tl.constexpr
):  # fmt: skip
    """Of child i, softmax over parents of logits_i + v . q."""
    j = tl.arange(0, JP)
    a = tl.full((JP,), 0.0, tl.float32)
    if LOGITS:
        a += tl.load(logits + i * J + j, mask=j < J, other=0.0)
    if QUERY:
        a += over_pose(v * q)
    a = tl.where(j < J, a, float("-inf"))
    top = tl.max(a, axis=0)
    if LEAKY:
        top = tl.maximum(top, 0.0)
    e = tl.exp(a - top)
    total = tl.sum(e, axis=0)
    if LEAKY:
        total += tl.exp(-top)
    return e / total


@triton.jit
def wide_sum(
    votes, query, logits, s, B, J, children, first, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, QUERY: tl.constexpr, LOGITS: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    """s adds up over blocks; this one begins with child `first`."""
    b, _, among_votes, mine, live = example_at(J, C, H, CP, JP, HP)
    total = tl.load(s + mine, mask=live & (first > 0), other=0.0)
    q = total
    if QUERY:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
    for i in range(children):
        v = tl.load(votes + (i * B + b) * (J * C * H) + among_votes, mask=live, other=0.0)
        total += coupling(v, q, logits, first + i, J, JP, QUERY, LOGITS, LEAKY)[None, :, None] * v
    tl.store(s + mine, total, mask=live)


@triton.jit
def wide_gradient(
    votes, query, logits, gs, gq, ga, B, J, children, first, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, QUERY: tl.constexpr, LOGITS: tl.constexpr, LEAKY: tl.constexpr,
    DETACH: tl.constexpr,
):  # fmt: skip
    """Gradients overwrite the votes; gq adds up over blocks; ga (B, children, J): that of each example's logits."""
    b, j, among_votes, mine, live = example_at(J, C, H, CP, JP, HP)
    g = tl.load(gs + mine, mask=live, other=0.0).to(tl.float32)
    q, of_query = g, g
    if QUERY:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
        of_query = tl.load(gq + mine, mask=live & (first > 0), other=0.0)
    for i in range(children):
        at = votes + (i * B + b) * (J * C * H) + among_votes
        v = tl.load(at, mask=live, other=0.0)
        c = coupling(v, q, logits, first + i, J, JP, QUERY, LOGITS, LEAKY)
        gv = c[None, :, None] * g
        if QUERY or LOGITS:
            rho = over_pose(g * v)
            alpha = c * (rho - tl.sum(c * rho, axis=0))
            if LOGITS:
                tl.store(ga + (b * children + i) * J + j, alpha, mask=j < J)
            if QUERY:
                of_query += alpha[None, :, None] * v
                if not DETACH:
                    gv += alpha[None, :, None] * q
        tl.store(at, gv, mask=live)
    if QUERY:
        tl.store(gq + mine, of_query, mask=live)
