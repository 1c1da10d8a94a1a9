"""Losses of the papers. Margin and spread loss: the mean over the batch of the sum over classes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.common.margin import CLASSES, margin_rows
from ..kernels.common.rows import fused
from ..routing.checks import can_look, check_floating, check_labels, check_number, check_overflow, check_tensor
from ..routing.math import compute_dtype

PRESENT, ABSENT = 0.9, 0.1  # m+ and m- of the margin loss


def multi_hot(targets: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Class indices (B,) -> (B, K); a multi-hot (B, K) as it is."""
    if targets.ndim == 2:
        return targets.to(dtype)
    return (targets.unsqueeze(1) == torch.arange(classes, device=targets.device)).to(dtype)


def _check(name: str, x: Tensor, targets: Tensor, targets_name: str = "targets") -> Tensor:
    """Checks x and the targets. Returns x in at least fp32: squares and sums over classes overflow half precision."""
    if x is None:
        raise TypeError(f"{name}: expected scores (B, classes), got None: capsules of attention routing have no "
                        "activation; cross_entropy_loss(SharedLinear(out_dim)(routed), targets) reads their poses")
    check_floating(name, x)
    if x.ndim != 2:
        raise ValueError(f"{name}: expected (B, classes), got {tuple(x.shape)}")
    if 0 in x.shape:
        raise ValueError(f"{name}: expected at least one example and one class, got {tuple(x.shape)}")
    check_labels(targets_name, targets, *x.shape)
    if targets.device != x.device:
        raise ValueError(f"{targets_name}: on {targets.device}, but {name} is on {x.device}; move one with .to()")
    return x.to(compute_dtype(x))


def _checked(loss: Tensor, **arguments: Tensor) -> Tensor:
    check_overflow((loss,), False, **arguments)
    return loss


def _mean(rows: Tensor, targets: Tensor, weight: Tensor | None, classes: int) -> Tensor:
    """The mean over the batch of rows (B,), each times the weight of its class, or the mean weight of its classes."""
    if weight is None:
        return rows.mean()
    check_tensor("weight", weight)
    if weight.shape != (classes,):
        raise ValueError(f"weight: expected ({classes},), one number per class, got {tuple(weight.shape)}")
    t = multi_hot(targets, classes, rows.dtype)
    count = t.sum(1)
    each = (t @ weight.to(t)) / torch.where(count > 0, count, 1)
    return (torch.where(count > 0, each, 1) * rows).mean()


def margin_loss(
    lengths: Tensor, targets: Tensor, *, present: float = PRESENT, absent: float = ABSENT, down_weight: float = 0.5,
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """T max(0, m+ - ||v||)^2 + lambda (1 - T) max(0, ||v|| - m-)^2 (dynamic, Eq. 4).

    weight (K,), here and in the other losses: an example's loss is multiplied by the weight of its class (the mean of
    its classes' weights; 1 where it has none). The sum is divided by the size of the batch, not by the weights' sum.
    """
    for name, value in (("present", present), ("absent", absent), ("down_weight", down_weight)):
        check_number(name, value)
    v = _check("lengths", lengths, targets)
    if weight is None and fused(v) and v.shape[1] <= CLASSES:
        loss: Tensor = margin_rows(v, targets, present, absent, down_weight)[0]
        return loss
    t = multi_hot(targets, v.shape[1], v.dtype)
    per_class = t * F.relu(present - v).square() + down_weight * (1 - t) * F.relu(v - absent).square()
    return _checked(_mean(per_class.sum(1), targets, weight, v.shape[1]), lengths=lengths)


def spread_loss(
    activations: Tensor, labels: Tensor, margin: float | Tensor, *, weight: Tensor | None = None
) -> Tensor:
    """sum over wrong classes i of max(0, margin - (a_t - a_i))^2 (em)."""
    if not isinstance(margin, Tensor):
        check_number("margin", margin)
    elif margin.numel() != 1:  # one for each example would be taken for one for each class
        raise ValueError(f"margin: expected one number, got {tuple(margin.shape)}")
    a = _check("activations", activations, labels, "labels")
    if labels.ndim == 2 and can_look(labels) and labels.sum(1).max() > 1 + 1e-3:
        raise ValueError("labels: expected one class of each example, with which others are compared, got several; "
                         "margin_loss takes them")
    t = multi_hot(labels, a.shape[1], a.dtype)
    right = (a * t).sum(1, keepdim=True)
    gap = F.relu(margin - (right - a)).square()
    return _checked(_mean((gap * (1 - t)).sum(1), labels, weight, a.shape[1]), activations=activations)


def spread_margin(progress: float | Tensor) -> float | Tensor:
    """The margin of the spread loss, 0.2 -> 0.9 linearly in progress (0 to 1) through training."""
    if not isinstance(progress, Tensor):
        check_number("progress", progress)
    return 0.2 + 0.7 * progress


def spread_margin_by_step(step: int) -> float:
    """The margin of the authors' public code: 0.2 + 0.79 sigmoid(min(10, step / 50000 - 4)), from 0.21 to 0.99."""
    check_number("step", step, 0)
    return 0.2 + 0.79 / (1 + math.exp(-min(10.0, step / 50_000 - 4)))


def cross_entropy_loss(
    scores: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy of a softmax over classes; targets are indices (B,) or a distribution (B, K), as mixup makes."""
    check_number("label_smoothing", label_smoothing, 0)
    if label_smoothing > 1:
        raise ValueError(f"label_smoothing: expected 0 to 1, got {label_smoothing}")
    x = _check("scores", scores, targets)
    t = targets.to(x.dtype) if targets.ndim == 2 else targets.long()
    reduction = "mean" if weight is None else "none"
    loss = F.cross_entropy(x, t, label_smoothing=label_smoothing, reduction=reduction)
    return _checked(loss if weight is None else _mean(loss, targets, weight, x.shape[1]), scores=scores)


def binary_cross_entropy_loss(scores: Tensor, targets: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Cross-entropy of one logistic unit per class, for images that hold several: the mean over classes and batch."""
    x = _check("scores", scores, targets)
    t = multi_hot(targets, x.shape[1], x.dtype)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="mean" if weight is None else "none")
    return _checked(loss if weight is None else _mean(loss.mean(1), targets, weight, x.shape[1]), scores=scores)


def reconstruction_loss(output: Tensor, image: Tensor) -> Tensor:
    """The **sum** of squared differences per image, averaged over the batch; the papers weigh it by 0.0005."""
    check_floating("output", output)
    check_tensor("image", image)
    if output.ndim < 2 or output.shape[0] == 0:
        raise ValueError(f"output: expected (B, ...) pixels, at least one image, got {tuple(output.shape)}")
    if image.ndim < 2 or (output.shape[0], output.numel()) != (image.shape[0], image.numel()):
        raise ValueError(f"output: expected as many pixels as {tuple(image.shape)} has, got {tuple(output.shape)}")
    if image.device != output.device or image.is_complex():
        raise ValueError(f"image: expected real numbers on {output.device}, got {image.dtype} on {image.device}")
    x, y = (z.to(compute_dtype(output, image)).flatten(1) for z in (output, image))
    loss = F.mse_loss(x, y, reduction="sum") / x.shape[0]
    return _checked(loss, output=output, image=image)
