r"""How far the votes that a parent attends to lie apart, for attention's capsules with activations (ablation C).

    r_ij = softmax_j(v_ij . q_j),   n_j = sum_i r_ij,   m_j = sum_i r_ij (v_ij - mean_j)^2      (B, J, D)

Squares of votes are no product of poses and transforms, so votes are formed, a block at a time (`common.formed`).
Forward is Welford's, child by child:

    n_j += r_ij,   e = v_ij - mean_j,   mean_j += e r_ij / n_j,   m_j += r_ij e (v_ij - mean_j)

Backward, with e = v_ij - mean_j, g the gradient of m and k that of n (mean is where m is least, so it has none):

    rho_ij = k_j + sum_d g_j e^2,   alpha_ij = r_ij (rho_ij - sum_j r_ij rho_ij),   gv_ij = 2 r_ij e g_j + alpha_ij q_j
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..common.formed import Gradients, blocks, constants
from ..common.operators import operator
from ..common.replay import launch
from ..common.rows import empty_fp32
from ..votes import Votes
from .wide import coupling, example_at, over_pose


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
    b, j = u.shape[0], weight.shape[0]
    n, mean, m = _empty(u, weight, query)
    q = mean if query is None else query.contiguous()
    for block in blocks(u, weight):
        votes = block.votes
        launch(spread_forward, (b,))(
            votes, q, n, mean, m, b, j, votes.shape[0], block.first, QUERY=query is not None, **constants(u, weight)
        )
    return n, mean, m


@operator("spread_backward")
def spread_backward(
    gn: Tensor, gm: Tensor, u: Tensor, weight: Tensor, query: Tensor | None, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """gu, gW, and gq, of no elements without a query."""
    b, j, into = u.shape[0], weight.shape[0], Gradients(u, weight)
    gq = empty_fp32(u, *((0,) if query is None else query.shape))
    q = mean if query is None else query.contiguous()
    for block in blocks(u, weight):
        votes = block.votes
        launch(spread_gradient, (b,))(
            votes, q, mean, gn, gm, gq, b, j, votes.shape[0], block.first, QUERY=query is not None,
            **constants(u, weight),
        )  # fmt: skip
        into.take(block, votes)
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
