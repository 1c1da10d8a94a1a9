r"""The step dynamic and attention share: children attend to parents, parents sum what they get.

    a_ij = l_ij + v_ij . q_j,   c_ij = softmax_j(a_ij),   s_j = sum_i c_ij v_ij

With v_ij = u_i W_ij the agreement is u_i . (q_j W_ij^T) and the sum is (c_ij u_i) W_ij: both are matrix products per
parent and pose column over all children of a block, and no vote is formed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...routing.math import Softmax, over_parents
from ..common.cpu import Source, fits, sources_of
from ..votes import Votes, Windows, add_up, children_per_block, recompute, split_children
from .cpu import AttendStep, Options


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


def coupling(u: Tensor, weight: Tensor, logits: Tensor | None, query: Tensor | None, options: Options) -> Tensor:
    """c (B, I, J)."""
    b, i, j, _ = Votes(u, weight).size()
    u, weight = (u.detach(), weight.detach()) if options.detach else (u, weight)
    a = u.new_zeros(b, i, j) if query is None else project(u, weight, query)
    return options.softmax(a if logits is None else a + logits, leaky=options.leaky)


def uniform(u: Tensor, weight: Tensor) -> Tensor:
    """sum_i v_ij / J: one matrix product, no coupling formed. (B, J, D)"""
    (b, _, _, c, _), (j, _, _, h) = u.shape, weight.shape
    return torch.einsum("bgcd,jdgh->bjch", u.sum(2), weight).reshape(b, j, c * h) / j


def uniform_on_cpu(source: Source) -> Tensor:
    """The same from a CPU's source: (B C, G d) x (G d, h J). (B, D, J)"""
    u, weight = source
    j = weight.shape[3]
    poses = (u.sum(1) if u.shape[1] > 1 else u[:, 0]).permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
    return (poses @ weight.flatten(0, 1).flatten(1)).view(source.block) / j


def uniform_over_image(votes: Windows) -> Tensor:
    """The same of children in their image: a convolution, the rows of a pose a part of its batch. (B * H' * W', J, D)

    Its channels are the types times the columns of a pose, and last in memory, as they are fastest on a CPU.
    """
    image, weight, c, k, stride = votes
    b, t, height, width, _ = image.shape
    j, d, _, h = weight.shape
    u = image.unflatten(4, (c, d)).permute(0, 4, 2, 3, 1, 5).reshape(b * c, height, width, t * d)
    w = (weight / j).view(j, d, t, k, k, h).permute(0, 5, 3, 4, 2, 1).reshape(j * h, k, k, t * d)
    s = F.conv2d(u.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=stride).permute(0, 2, 3, 1)
    return s.view(b, c, *s.shape[1:3], j, h).permute(0, 2, 3, 4, 1, 5).reshape(-1, j, c * h)


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
        self.options = Options(leaky, softmax, detach)
        self.plain = logits is None and not leaky and softmax is over_parents
        self.sources = sources_of(votes, softmax) if fits(votes) else []
        self.priors = None if logits is None else logits.reshape(-1, votes.weight.shape[0])  # (I, J) or (1, J)
        self.blocks = votes.split(children_per_block(votes, b * votes.weight.shape[0] * c * d, softmax))
        self.logits = split_children(self.priors, self.blocks, 0)

    def _block(self, u: Tensor, weight: Tensor, logits: Tensor | None, query: Tensor | None) -> Tensor:
        return combine(u, weight, coupling(u, weight, logits, query, self.options))

    def __call__(self, query: Tensor | None) -> Tensor:
        """s (B, J, D). query None: couplings of the logits alone."""
        if self.sources:
            return self._on_cpu(query)
        if query is None and self.plain:
            return add_up(recompute(uniform, *block) for block in self.blocks)
        pairs = zip(self.blocks, self.logits, strict=True)
        return add_up(recompute(self._block, *block, logits, query) for block, logits in pairs)

    def _on_cpu(self, query: Tensor | None) -> Tensor:
        """The same, in the layout and the memory of `common.cpu`."""
        if query is None and self.plain:
            return torch.cat([uniform_on_cpu(source) for source in self.sources]).transpose(1, 2)
        logits = None if self.priors is None else self.priors[:, None]
        queries = [None] * len(self.sources) if query is None else [
            q.transpose(1, 2).contiguous() for q in query.split([source.batch for source in self.sources])
        ]
        pairs = zip(self.sources, queries, strict=True)
        return torch.cat([AttendStep.apply(*source, q, logits, self.options) for source, q in pairs]).transpose(1, 2)

    def couplings(self, query: Tensor | None) -> Tensor:
        """c (B, I, J), where they are asked for."""
        pairs = zip(self.blocks, self.logits, strict=True)
        return torch.cat([coupling(*block, logits, query, self.options) for block, logits in pairs], 1)
