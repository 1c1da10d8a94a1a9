"""The Gaussian parents of em and heinsen: moments of weighted votes, densities in the log domain."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_moments(weight: Tensor, votes: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of votes (B, I, J, D) weighted by (B, I, J): their total weight (B, J), mean and variance (B, J, D).

    eps is added to the total where it divides, and to the variance.
    """
    total = weight.sum(1)
    share = weight / (total + eps)[:, None]
    mean = torch.einsum("bij,bijd->bjd", share, votes)
    variance = torch.einsum("bij,bijd->bjd", share, (votes - mean[:, None]).square()) + eps
    return total, mean, variance


def log_density(votes: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(votes; mean, variance) up to the constant of 2 pi, which a softmax over parents cancels. (B, I, J)"""
    mahalanobis = ((votes - mean[:, None]).square() / variance[:, None]).sum(-1)
    return -0.5 * (mahalanobis + variance.log().sum(-1)[:, None])
