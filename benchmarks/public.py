"""Layers in the style of public capsule code, written afresh: every vote is formed by a broadcast matmul and stored.

They exist to be measured against; tests/benchmarks/test_public.py holds them to the same numbers as flashcaps. Weights
are (I, J, ...) as such code keeps them; `adopt` copies a flashcaps layer's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashcaps.functional import inverse_temperature, squash


class PublicVotes(nn.Module):
    """vote_ij = pose_i @ W_ij by broadcasting. pose (B, I, C, d) -> (B, I, J, C * h)"""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().permute(2, 0, 1, 3).contiguous())  # (G, J, d, h)
        self.bias = None
        if layer.bias is not None:
            self.bias = nn.Parameter(layer.bias.detach().permute(2, 0, 1, 3).contiguous())  # (G, J, C, h)
        self.rows = layer.rows

    def forward(self, u: Tensor) -> Tensor:
        b, i, dim = u.shape
        votes = u.view(b, i, 1, self.rows, dim // self.rows) @ self.weight[None]
        if self.bias is not None:
            votes = votes + self.bias[None]
        return votes.flatten(3)


class PublicDynamic(nn.Module):
    """The loop of softmax, weighted sum and agreement. u (B, I, D_in) -> (B, J, D)"""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.votes, self.iterations = PublicVotes(layer), layer.routing.iterations

    def forward(self, u: Tensor) -> Tensor:
        votes = self.votes(u)  # (B, I, J, D)
        b = votes.new_zeros(votes.shape[:3])
        for t in range(self.iterations):
            c = F.softmax(b, dim=-1)
            s = (c[..., None] * votes).sum(1)
            v = squash(s)
            if t < self.iterations - 1:
                b = b + (votes * v[:, None]).sum(-1)
        return v


class PublicAttention(nn.Module):
    """Votes, agreement with the parents so far, softmax, weighted sum, LayerNorm. u (B, I, D_in) -> (B, J, D)"""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.votes, self.iterations = PublicVotes(layer), layer.routing.iterations
        self.norm = nn.LayerNorm(layer.out_dim)

    def forward(self, u: Tensor) -> Tensor:
        votes = self.votes(u)
        pose = votes.new_zeros(votes.shape[0], votes.shape[2], votes.shape[3])
        for _ in range(self.iterations):
            a = (votes * pose[:, None]).sum(-1) * votes.shape[-1] ** -0.5
            pose = self.norm((F.softmax(a, dim=-1)[..., None] * votes).sum(1))
        return pose


class PublicEM(nn.Module):
    """M-step and E-step on stored votes. u (B, I, D_in), activations all 1 -> (B, J, D)"""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.votes, self.iterations, self.eps = PublicVotes(layer), layer.routing.iterations, layer.routing.eps
        self.beta_u = nn.Parameter(torch.zeros(layer.parents, 1))
        self.beta_a = nn.Parameter(torch.zeros(layer.parents))

    def forward(self, u: Tensor) -> Tensor:
        votes = self.votes(u)
        r = torch.full_like(votes[..., 0], 1 / votes.shape[2])
        for t, inverse in enumerate(inverse_temperature(self.iterations)):
            total = r.sum(1)
            share = (r / (total[:, None] + self.eps))[..., None]
            mu = (share * votes).sum(1, keepdim=True)
            variance = (share * (votes - mu) ** 2).sum(1, keepdim=True) + self.eps
            cost = (self.beta_u + 0.5 * variance[:, 0].log()) * total[..., None]
            logit = inverse * (self.beta_a - cost.sum(-1))
            if t < self.iterations - 1:
                log_p = -0.5 * ((votes - mu) ** 2 / variance + variance.log()).sum(-1)
                r = F.softmax(F.logsigmoid(logit)[:, None] + log_p, dim=-1)
        return mu[:, 0]


class PublicHeinsen(nn.Module):
    """E-, D- and M-step on stored votes. u (B, I, D_in), scores all +inf -> (B, J, D)"""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.votes, self.iterations, self.eps = PublicVotes(layer), layer.routing.iterations, layer.routing.eps
        self.use = nn.Parameter(layer.learned["beta_use"].detach().clone())
        self.ignore = nn.Parameter(layer.learned["beta_ignore"].detach().clone())

    def forward(self, u: Tensor) -> Tensor:
        votes = self.votes(u)
        r = torch.full_like(votes[..., 0], 1 / votes.shape[2])
        for t in range(self.iterations):
            a = (self.use * r).sum(1) - (self.ignore * (1 - r)).sum(1)
            share = (r / (r.sum(1, keepdim=True) + self.eps))[..., None]
            mu = (share * votes).sum(1, keepdim=True)
            variance = (share * (votes - mu) ** 2).sum(1, keepdim=True) + self.eps
            if t < self.iterations - 1:
                log_p = -0.5 * ((votes - mu) ** 2 / variance + variance.log()).sum(-1)
                r = F.softmax(F.logsigmoid(a)[:, None] + log_p, dim=-1)
        return mu[:, 0]


class PublicDiscriminative(nn.Module):
    """Weighted sum of stored votes, squashed. u (B, I, D_in) -> (B, J, D)"""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.votes = PublicVotes(layer)
        self.coefficients = layer.coefficients.clone()

    def forward(self, u: Tensor) -> Tensor:
        return squash((self.coefficients[None, ..., None] * self.votes(u)).sum(1))


PUBLIC = {
    "dynamic": PublicDynamic,
    "em": PublicEM,
    "attention": PublicAttention,
    "heinsen": PublicHeinsen,
    "discriminative": PublicDiscriminative,
}
