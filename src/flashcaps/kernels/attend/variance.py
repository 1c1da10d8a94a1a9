r"""How far the votes that a parent attends to lie apart, for attention's capsules with activations (ablation C).

    r_ij = softmax_j(v_ij . q_j),   n_j = sum_i r_ij,   m_j = sum_i r_ij (v_ij - mean_j)^2      (B, J, D)

Squares of votes are no product of poses and transforms, so votes are formed, a block at a time (`_voted`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...routing.votes import Votes
from ..common.formed import Gradients, blocks, constants


def variance_of_attended(votes: Votes, query: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Total coupling (B, J) and variance (B, J, D) of votes coupled by agreement, as `spread_of_attended`'s."""
    n, _, m = spread(*votes, query)
    return n, m / (n + eps)[..., None] + eps


@torch.library.custom_op("flashcaps::spread", mutates_args=())
def spread(u: Tensor, weight: Tensor, query: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """n (B, J), for the backward pass mean (B, J, D), and m (B, J, D). u (B, G, 1, C, d), weight (J, d, G, h)."""
    from . import variance_triton as kernels

    b, j = u.shape[0], weight.shape[0]
    n, mean, m = _empty(u, weight)
    q = mean if query is None else query.contiguous()
    for block in blocks(u, weight):
        votes = block.votes
        kernels.spread[(b,)](
            votes, q, n, mean, m, b, j, votes.shape[0], block.first, ASKED=query is not None, **constants(u, weight)
        )
    return n, mean, m


def _empty(u: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, j, d = u.shape[0], weight.shape[0], u.shape[3] * weight.shape[3]
    n, mean, m = (torch.empty(shape, dtype=torch.float32, device=u.device) for shape in ((b, j), (b, j, d), (b, j, d)))
    return n, mean, m


@spread.register_fake
def _(u, weight, query):
    return _empty(u, weight)


@torch.library.custom_op("flashcaps::spread_backward", mutates_args=())
def spread_backward(
    gn: Tensor, gm: Tensor, u: Tensor, weight: Tensor, query: Tensor | None, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """gu, gW, and gq or nothing."""
    from . import variance_triton as kernels

    b, j, into = u.shape[0], weight.shape[0], Gradients(u, weight)
    gq = torch.empty(0 if query is None else query.shape, dtype=torch.float32, device=u.device)
    q = mean if query is None else query.contiguous()
    for block in blocks(u, weight):
        votes = block.votes
        kernels.spread_backward[(b,)](
            votes, q, mean, gn, gm, gq, b, j, votes.shape[0], block.first, ASKED=query is not None,
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


def _differentiate(ctx: Any, gn: Tensor, _: Tensor, gm: Tensor) -> tuple[Tensor | None, ...]:
    u, weight, query, mean = ctx.saved_tensors
    gu, gw, gq = spread_backward(gn.contiguous(), gm.contiguous(), u, weight, query, mean)
    return gu, gw, None if query is None else gq


spread.register_autograd(_differentiate, setup_context=_keep)
