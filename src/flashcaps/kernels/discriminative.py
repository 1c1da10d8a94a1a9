"""Discriminative routing without votes: coefficients join the weights, the rest is a matrix product per parent."""

from __future__ import annotations

import torch
from torch import Tensor

from ..routing.contract import Routed, Step
from ..routing.discriminative import label_signs
from ..routing.math import Softmax, length, over_parents
from .attend.matrix import combine
from .attend.triton import TritonAttend, check_supported
from .common.norm import squash_poses
from .votes import Votes, add_up, children_per_block, recompute, split_children


def weighted_sum(votes: Votes, coefficients: Tensor, triton: bool = False) -> Tensor:
    """v_j = sum_i b_ij u_j|i, before squash. coefficients (I, J), or (G, J) for children that share -> (B, J, D)

    triton: the kernels of equal couplings, 1 / J each, on weights b_ij W_ij.
    """
    if triton:
        check_supported(votes)  # before the product, which children that share a transform would break
        j = votes.weight.shape[0]
        return TritonAttend(Votes(votes.u, votes.weight * (j * coefficients.t()[:, None, :, None])))(None)
    blocks = _blocks(votes)
    if coefficients.shape[0] != votes.size()[1]:
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
    triton: bool = False,
) -> Routed:
    """The routing file's `discriminative_routing` on votes that stay u and W."""
    s = squash_poses(weighted_sum(votes, coefficients, triton))
    b, i, j, _ = votes.size()
    c = coefficients.expand(b, i, j) if coupling or record else None
    return Routed(s, length(s), c, history=(Step(c, s),) if record and c is not None else None)


@torch.no_grad()
def weighted_sum_agreement(
    votes: Votes,
    coefficients: Tensor,
    labels: Tensor,
    triton: bool = False,
    margins: tuple[float, float] | None = None,
) -> Tensor:
    """sum_k delta_jk u_j|i . v_j over the batch, (G, J): children that share a transform share a coefficient.

    u_j|i = u_i W_ij, so this is W_ij . (sum_k u_i^T delta_jk v_j): one product as large as the weights.
    """
    u, weight = votes
    h = weight.shape[-1]
    v = weighted_sum(votes, coefficients, triton)
    query = label_signs(labels, v, margins)[..., None] * v
    outer = torch.einsum("bgcd,bjch->jdgh", u.sum(2), query.unflatten(-1, (-1, h)))
    return (weight * outer).sum((1, 3)).t()


def _blocks(votes: Votes) -> list[Votes]:
    b, _, _, c, d = votes.u.shape
    return votes.split(children_per_block(votes, b * votes.weight.shape[0] * c * d, over_parents))
