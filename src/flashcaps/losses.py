"""Losses of the papers. Margin and spread loss: the mean over the batch of the sum over classes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .routing._checks import check_floating


def multi_hot(targets: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Class indices (B,) -> (B, K); a multi-hot (B, K) as it is."""
    if targets.ndim == 2:
        return targets.to(dtype)
    return (targets[:, None] == torch.arange(classes, device=targets.device)).to(dtype)


def _check(name: str, x: Tensor, targets: Tensor, targets_name: str = "targets") -> None:
    check_floating(name, x)
    if x.ndim != 2:
        raise ValueError(f"{name}: expected (B, classes), got {tuple(x.shape)}")
    if tuple(targets.shape) not in ((x.shape[0],), tuple(x.shape)):
        raise ValueError(
            f"{targets_name}: expected {(x.shape[0],)} class indices or {tuple(x.shape)} multi-hot, "
            f"got {tuple(targets.shape)}"
        )


def margin_loss(
    lengths: Tensor, targets: Tensor, *, present: float = 0.9, absent: float = 0.1, down_weight: float = 0.5
) -> Tensor:
    """T max(0, m+ - ||v||)^2 + lambda (1 - T) max(0, ||v|| - m-)^2 (dynamic, Eq. 4)."""
    _check("lengths", lengths, targets)
    t = multi_hot(targets, lengths.shape[1], lengths.dtype)
    per_class = t * F.relu(present - lengths).square() + down_weight * (1 - t) * F.relu(lengths - absent).square()
    return per_class.sum(1).mean()


def spread_loss(activations: Tensor, labels: Tensor, margin: float | Tensor) -> Tensor:
    """sum over wrong classes i of max(0, margin - (a_t - a_i))^2 (em)."""
    _check("activations", activations, labels, "labels")
    t = multi_hot(labels, activations.shape[1], activations.dtype)
    right = (activations * t).sum(1, keepdim=True)
    gap = F.relu(margin - (right - activations)).square()
    return (gap * (1 - t)).sum(1).mean()


def spread_margin(progress: float | Tensor) -> float | Tensor:
    """The margin of the spread loss, 0.2 -> 0.9 linearly in progress (0 to 1) through training."""
    return 0.2 + 0.7 * progress


def spread_margin_by_step(step: int) -> float:
    """The margin of the authors' public code: 0.2 + 0.79 sigmoid(min(10, step / 50000 - 4)), from 0.21 to 0.99."""
    return 0.2 + 0.79 / (1 + math.exp(-min(10.0, step / 50_000 - 4)))


def cross_entropy_loss(scores: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of a softmax over classes; targets are indices (B,) or a distribution (B, K), as mixup makes."""
    _check("scores", scores, targets)
    x = scores.float() if scores.dtype.itemsize < 4 else scores
    return F.cross_entropy(x, targets, label_smoothing=label_smoothing)


def binary_cross_entropy_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of one logistic unit per class, for images that hold several: the mean over classes and batch."""
    _check("scores", scores, targets)
    x = scores.float() if scores.dtype.itemsize < 4 else scores
    return F.binary_cross_entropy_with_logits(x, multi_hot(targets, x.shape[1], x.dtype))


def reconstruction_loss(output: Tensor, image: Tensor) -> Tensor:
    """The **sum** of squared differences per image, averaged over the batch; the papers weigh it by 0.0005."""
    if output.flatten(1).shape != image.flatten(1).shape:
        raise ValueError(f"output: expected as many pixels as {tuple(image.shape)} has, got {tuple(output.shape)}")
    return (output.flatten(1) - image.flatten(1)).square().sum(1).mean()
