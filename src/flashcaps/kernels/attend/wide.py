r"""Steps whose votes are formed, a block of children at a time (`common.formed`), in every iteration and backward.

    a_ij = l_ij + v_ij . q_j,   c_ij = softmax_j(a_ij),   s_j = sum_i c_ij v_ij
    rho_ij = gs_j . v_ij,   alpha_ij = c_ij (rho_ij - sum_j c_ij rho_ij)
    gv_ij = c_ij gs_j + alpha_ij q_j,   gq_j = sum_i alpha_ij v_ij

is `attend` for wide poses, whose tiles would not fit the registers of `attend.kernels`: more products than with stored
votes, and the memory of a block. How far the votes that a parent attends to lie apart, for attention's capsules with
activations (ablation C), needs squares of votes, which are no product of poses and transforms:

    n_j = sum_i c_ij,   m_j = sum_i c_ij (v_ij - mean_j)^2      (B, J, D)

Forward is Welford's, child by child:  n_j += c_ij,  e = v_ij - mean_j,  mean_j += e c_ij / n_j,  m_j += c_ij e (v_ij -
mean_j). Backward, with g the gradient of m and k that of n (mean is where m is least, so it has none):

    rho_ij = k_j + sum_d g_j e^2,   gv_ij = 2 c_ij e g_j + alpha_ij q_j

Couplings are never stored. A program has one example's parents and walks through the block's children. A child's votes
are (C, J, H), the rows and columns of their poses around the parents. Constants: QUERY, LOGITS: what is given. LEAKY:
one more logit of 0, whose coupling is dropped. DETACH: votes get no gradient through the agreement.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.formed import Block, Gradients, blocks, constants
from ..common.operators import operator
from ..common.replay import launch
from ..common.rows import empty_fp32
from ..votes import Votes


def attend_wide(u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool) -> Tensor:
    """s (B, J, D) in fp32; arguments as `attend`'s."""
    s = empty_fp32(u, u.shape[0], weight.shape[0], u.shape[3] * weight.shape[3])
    q, prior = (s if x is None else x.contiguous() for x in (query, logits))  # s stands for what is not read
    for block in blocks(u, weight):
        _walk(wide_sum, u, weight, block, q, prior, s, QUERY=query is not None, LOGITS=logits is not None, LEAKY=leaky)
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
        ga = empty_fp32(u, b if logits is not None else 0, block.poses.shape[0], j)
        into.take(block, _walk(wide_gradient, u, weight, block, q, prior, gs, gq, ga, **options))
        if logits is not None:
            gl.append(ga.sum(0))
    return *into.laid_out_like(u, weight), gq, torch.cat(gl) if gl else gq


def _walk(kernel: Any, u: Tensor, weight: Tensor, block: Block, *tensors: Tensor, **options: bool) -> Tensor:
    """Forms the votes of a block and has a program for each example walk through them; returns what it left of them."""
    b, votes = u.shape[0], block.votes
    launch(kernel, (b,))(
        votes, *tensors, b, weight.shape[0], votes.shape[0], block.first, **options, **constants(u, weight)
    )
    return votes


def variance_of_attended(votes: Votes, query: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Total coupling (B, J) and variance (B, J, D) of votes coupled by agreement; `spread_of_attended` in kernels."""
    n, _, m = spread(*votes, query)
    return n, m / (n + eps)[..., None] + eps


def _empty(u: Tensor, weight: Tensor, query: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    b, j, d = u.shape[0], weight.shape[0], u.shape[3] * weight.shape[3]
    return empty_fp32(u, b, j), empty_fp32(u, b, j, d), empty_fp32(u, b, j, d)


@operator("spread")
def spread(u: Tensor, weight: Tensor, query: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """n (B, J), for the backward pass mean (B, J, D), and m (B, J, D). u (B, G, 1, C, d), weight (J, d, G, h)."""
    n, mean, m = _empty(u, weight, query)
    q = mean if query is None else query.contiguous()
    for block in blocks(u, weight):
        _walk(spread_forward, u, weight, block, q, n, mean, m, QUERY=query is not None)
    return n, mean, m


@operator("spread_backward")
def spread_backward(
    gn: Tensor, gm: Tensor, u: Tensor, weight: Tensor, query: Tensor | None, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """gu, gW, and gq, of no elements without a query."""
    into, gq = Gradients(u, weight), empty_fp32(u, *((0,) if query is None else query.shape))
    q = mean if query is None else query.contiguous()
    for block in blocks(u, weight):
        into.take(block, _walk(spread_gradient, u, weight, block, q, mean, gn, gm, gq, QUERY=query is not None))
    return *into.laid_out_like(u, weight), gq if query is None else gq.to(query.dtype)


@spread_backward.register_fake
def _(gn, gm, u, weight, query, mean):
    gq = mean.new_empty(0) if query is None else query.new_empty(query.shape)
    return u.new_empty(u.shape), weight.new_empty(weight.shape), gq


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, gn: Tensor, _: Tensor, gm: Tensor) -> tuple[Tensor | None, ...]:
    u, weight, query, mean = ctx.saved_tensors
    gu, gw, gq = spread_backward(gn.contiguous(), gm.contiguous(), u, weight, query, mean)
    return gu, gw, None if query is None else gq


spread.register_fake(_empty)
spread.register_autograd(_backward, setup_context=_keep)


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


@triton.jit
def spread_forward(
    votes, query, n, mean, m, B, J, children, again, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, QUERY: tl.constexpr,
):  # fmt: skip
    """again: continue the sums of an earlier block of children."""
    b, j, among_votes, mine, live = example_at(J, C, H, CP, JP, HP)
    total = tl.load(n + b * J + j, mask=(j < J) & (again > 0), other=0.0)
    centre = tl.load(mean + mine, mask=live & (again > 0), other=0.0)
    squares = tl.load(m + mine, mask=live & (again > 0), other=0.0)
    q = centre
    if QUERY:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
    for i in range(children):
        v = tl.load(votes + (i * B + b) * (J * C * H) + among_votes, mask=live, other=0.0)
        r = coupling(v, q, q, i, J, JP, QUERY, False, False)
        total += r
        part = r / tl.maximum(total, 1e-30)  # not 0 / 0 before any child is coupled
        e = v - centre
        centre += part[None, :, None] * e
        squares += r[None, :, None] * e * (v - centre)
    tl.store(n + b * J + j, total, mask=j < J)
    tl.store(mean + mine, centre, mask=live)
    tl.store(m + mine, squares, mask=live)


@triton.jit
def spread_gradient(
    votes, query, mean, gn, gm, gq, B, J, children, again, C: tl.constexpr, H: tl.constexpr, CP: tl.constexpr,
    JP: tl.constexpr, HP: tl.constexpr, QUERY: tl.constexpr,
):  # fmt: skip
    """Gradients overwrite the votes; gq adds up over blocks."""
    b, j, among_votes, mine, live = example_at(J, C, H, CP, JP, HP)
    centre = tl.load(mean + mine, mask=live, other=0.0)
    g = tl.load(gm + mine, mask=live, other=0.0).to(tl.float32)
    k = tl.load(gn + b * J + j, mask=j < J, other=0.0).to(tl.float32)
    q, of_query = centre, centre
    if QUERY:
        q = tl.load(query + mine, mask=live, other=0.0).to(tl.float32)
        of_query = tl.load(gq + mine, mask=live & (again > 0), other=0.0)
    for i in range(children):
        at = votes + (i * B + b) * (J * C * H) + among_votes
        v = tl.load(at, mask=live, other=0.0)
        r = coupling(v, q, q, i, J, JP, QUERY, False, False)
        e = v - centre
        gv = 2 * r[None, :, None] * e * g
        if QUERY:
            rho = k + over_pose(g * e * e)
            alpha = (r * (rho - tl.sum(r * rho, axis=0)))[None, :, None]
            gv += alpha * q
            of_query += alpha * v
        tl.store(at, gv, mask=live)
    if QUERY:
        tl.store(gq + mine, of_query, mask=live)
