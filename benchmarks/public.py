"""Layers in the style of public capsule code, written afresh: every vote is stored.

They exist to be measured against; they agree with `backend="reference"` (tests/benchmarks).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashcaps.functional import squash


class PublicDynamic(nn.Module):
    """Votes by broadcast matmul, then the loop of softmax, weighted sum and agreement. u (B, I, D_in) -> (B, J, D)"""

    def __init__(self, in_capsules: int, in_dim: int, out_capsules: int, out_dim: int, iterations: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(1, in_capsules, out_capsules, out_dim, in_dim))
        self.iterations = iterations

    def forward(self, u: Tensor) -> Tensor:
        votes = (self.weight @ u[:, :, None, :, None]).squeeze(-1)  # (B, I, J, D)
        b = votes.new_zeros(votes.shape[:3])
        for t in range(self.iterations):
            c = F.softmax(b, dim=-1)
            s = (c[..., None] * votes).sum(1)
            v = squash(s)
            if t < self.iterations - 1:
                b = b + (votes * v[:, None]).sum(-1)
        return v
