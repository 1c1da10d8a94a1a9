"""Discriminative routing without votes: coefficients join the weights, the rest is a matrix product per parent."""

from __future__ import annotations

import torch
from torch import Tensor

from ..routing._math import Softmax, length, over_parents
from ..routing._types import Routed, Step
from ..routing.discriminative import ascend, label_signs
from ..votes import Votes
from ._attend import combine, project
from ._blocks import add_up, children_per_block, recompute, split_children
from ._norm import squash_poses


def weighted_sum(votes: Votes, coefficients: Tensor) -> Tensor:
    """v_j = sum_i b_ij u_j|i, before squash. coefficients (I, J), or (G, J) for children that share -> (B, J, D)"""
    blocks = _blocks(votes)
    if coefficients.shape[0] != votes.shape[1]:
        coefficients = coefficients.repeat_interleave(votes.u.shape[2], 0)
    b = split_children(coefficients[None], blocks, 1)
    return add_up(recompute(combine, *block, c) for block, c in zip(blocks, b, strict=True))


def discriminative_routing(
    votes: Votes,
    coefficients: Tensor,
    *,
    record: bool = False,
    coupling: bool = False,
    softmax: Softmax = over_parents,
) -> Routed:
    """The routing file's `discriminative_routing` on votes that stay u and W."""
    s = squash_poses(weighted_sum(votes, coefficients))
    b, i, j, _ = votes.shape
    c = coefficients.expand(b, i, j) if coupling or record else None
    return Routed(s, length(s), c, history=(Step(c, s),) if record and c is not None else None)


@torch.no_grad()
def weighted_sum_agreement(votes: Votes, coefficients: Tensor, labels: Tensor) -> Tensor:
    """sum_k delta_jk u_j|i . v_j over the batch, (G, J): children that share a transform share a coefficient."""
    _, _, j, _ = votes.shape
    g, r = votes.u.shape[1:3]
    query = label_signs(labels, j, votes.u.dtype)[..., None] * weighted_sum(votes, coefficients)
    agreement = torch.cat([project(*block, query).sum(0) for block in _blocks(votes)], 0)
    return agreement.view(g, r, j).sum(1)


def discriminative_update(
    coefficients: Tensor, votes: Votes, labels: Tensor, *, rate: float, strength: float, penalty: str = "l2"
) -> Tensor:
    """The routing file's `discriminative_update` on votes that stay u and W."""
    agreement = weighted_sum_agreement(votes, coefficients, labels)
    return ascend(coefficients, agreement, votes.shape[0], rate, strength, penalty)


def _blocks(votes: Votes) -> list[Votes]:
    b, _, _, c, d = votes.u.shape
    return votes.split(children_per_block(votes, b * votes.weight.shape[0] * c * d, over_parents))
