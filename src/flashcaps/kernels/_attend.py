r"""The step dynamic and attention share: children attend to parents, parents sum what they get.

    a_ij = l_ij + v_ij . q_j,   c_ij = softmax_j(a_ij),   s_j = sum_i c_ij v_ij

With v_ij = u_i W_ij the agreement is u_i . (q_j W_ij^T) and the sum is (c_ij u_i) W_ij: both are matrix products per
parent and pose column over all children of a block, and no vote is formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..routing._math import Softmax, over_parents
from ..votes import Votes
from ._blocks import add_up, children_per_block, recompute, split_children


def columns(u: Tensor) -> Tensor:
    """Poses of children that share nothing, (B, G, 1, C, d) -> (d, B, C, G): rows of children."""
    return u[:, :, 0].permute(3, 0, 2, 1).contiguous()


def project(u: Tensor, weight: Tensor, query: Tensor) -> Tensor:
    """v_ij . q_j for query (B, J, D) -> (B, I, J)."""
    (b, g, r, c, d), (j, _, _, h) = u.shape, weight.shape
    q = query.view(b, j, c, h).transpose(0, 1)[:, None].expand(j, d, b, c, h).reshape(j * d, b * c, h)
    y = torch.bmm(q, weight.flatten(0, 1).transpose(1, 2)).view(j, d, b, c, g)  # q_j W_ij^T
    if r == 1:
        return (y * columns(u)).sum((1, 3)).permute(1, 2, 0)
    return torch.einsum("bgrcd,jdbcg->bgrj", u, y).reshape(b, g * r, j)


def combine(u: Tensor, weight: Tensor, coupling: Tensor) -> Tensor:
    """sum_i c_ij v_ij for coupling (B or 1, I, J) -> (B, J, D)."""
    (b, g, r, c, d), (j, _, _, h) = u.shape, weight.shape
    if r == 1:
        t = coupling.permute(2, 0, 1).contiguous()[:, None, :, None] * columns(u)  # (J, d, B, C, G)
    else:
        t = torch.einsum("bgrj,bgrcd->jdbcg", coupling.reshape(-1, g, r, j).expand(b, g, r, j), u)
    s = torch.bmm(t.reshape(j * d, b * c, g), weight.flatten(0, 1)).view(j, d, b, c * h).sum(1)
    return s.transpose(0, 1)


def uniform(u: Tensor, weight: Tensor) -> Tensor:
    """sum_i v_ij / J: one matrix product, no coupling formed. (B, J, D)"""
    (b, _, _, c, _), (j, _, _, h) = u.shape, weight.shape
    return torch.einsum("bgcd,jdgh->bjch", u.sum(2), weight).reshape(b, j, c * h) / j


class Attend:
    """One layer's `attend`, its children cut into blocks once for all iterations."""

    def __init__(
        self,
        votes: Votes,
        logits: Tensor | None = None,
        leaky: bool = False,
        softmax: Softmax = over_parents,
        detach: bool = False,
    ) -> None:
        b, _, _, c, d = votes.u.shape
        self.leaky, self.softmax, self.detach = leaky, softmax, detach
        self.plain = logits is None and not leaky and softmax is over_parents
        self.blocks = votes.split(children_per_block(votes, b * votes.weight.shape[0] * c * d, softmax))
        self.logits = split_children(logits, self.blocks, 0) if logits is not None and logits.ndim == 2 else (
            [logits] * len(self.blocks)
        )

    def coupling(self, u: Tensor, weight: Tensor, logits: Tensor | None, query: Tensor | None) -> Tensor:
        b, i, j, _ = Votes(u, weight).shape
        if self.detach:  # no gradient through agreement
            u, weight = u.detach(), weight.detach()
        a = u.new_zeros(b, i, j) if query is None else project(u, weight, query)
        return self.softmax(a if logits is None else a + logits, leaky=self.leaky)

    def _block(self, u: Tensor, weight: Tensor, logits: Tensor | None, query: Tensor | None) -> Tensor:
        return combine(u, weight, self.coupling(u, weight, logits, query))

    def __call__(self, query: Tensor | None) -> Tensor:
        """s (B, J, D). query None: couplings of the logits alone."""
        if query is None and self.plain:
            return add_up(recompute(uniform, *block) for block in self.blocks)
        return add_up(
            recompute(self._block, *block, logits, query)
            for block, logits in zip(self.blocks, self.logits, strict=True)
        )

    def couplings(self, query: Tensor | None) -> Tensor:
        """c (B, I, J), for those who ask."""
        return torch.cat(
            [
                self.coupling(*block, logits, query)
                for block, logits in zip(self.blocks, self.logits, strict=True)
            ],
            1,
        )
