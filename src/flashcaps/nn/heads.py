"""From class capsules to scores and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..routing import Routed
from ..routing.checks import check_devices, check_dtype, check_floating, check_labels, check_overflow, check_sizes
from ..routing.math import length
from .losses import multi_hot


class Lengths(nn.Module):
    """The length of each class capsule (dynamic, discriminative). Routed -> (B, J)"""

    def forward(self, routed: Routed) -> Tensor:
        check_floating("pose", routed.pose)
        lengths = length(routed.pose)
        if not self.training:
            check_overflow((lengths,), False, pose=routed.pose)
        return lengths


class Activations(nn.Module):
    """The activation or score of each class capsule (em, heinsen). Routed -> (B, J)"""

    def forward(self, routed: Routed) -> Tensor:
        if routed.activation is None:
            raise ValueError("routed: these capsules have no activation; use SharedLinear on their poses")
        check_floating("activation", routed.activation)
        return routed.activation


class SharedLinear(nn.Module):
    """One Linear(D, 1) for all class capsules (attention). Routed -> (B, J)"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_sizes(dim=dim)
        self.linear = nn.Linear(dim, 1)

    def forward(self, routed: Routed) -> Tensor:
        check_floating("pose", routed.pose)
        if routed.pose.shape[-1:] != self.linear.weight.shape[1:]:
            raise ValueError(f"pose: expected (B, J, {self.linear.in_features}), got {tuple(routed.pose.shape)}")
        check_devices(self.linear.weight, pose=routed.pose)
        check_dtype("pose", routed.pose, self.linear.weight)
        scores: Tensor = self.linear(routed.pose)[..., 0]
        return scores


def mask_capsules(pose: Tensor, chosen: Tensor) -> Tensor:
    """Zero, not drop, all but the chosen capsules. chosen (B,) indices or (B, J) multi-hot; pose (B, J, D)."""
    check_floating("pose", pose)
    if pose.ndim != 3:
        raise ValueError(f"pose: expected (B, J, D), got {tuple(pose.shape)}")
    b, j, _ = pose.shape
    check_labels("chosen", chosen, b, j)
    check_devices(pose, chosen=chosen)
    return pose * multi_hot(chosen, j, pose.dtype).unsqueeze(-1)


class Decoder(nn.Module):
    """Three fully connected layers that draw an image from the masked class capsules (dynamic, Fig. 2).

    Routed, chosen -> (B, C, H, W). chosen: the true label in training, the prediction otherwise, or any capsule;
    None is the most active.
    """

    def __init__(
        self, capsules: int, dim: int, image: tuple[int, int, int], hidden: Sequence[int] = (512, 1024)
    ) -> None:
        super().__init__()
        check_sizes(capsules=capsules, dim=dim)
        self.capsules, self.dim, self.image = capsules, dim, image
        sizes = [capsules * dim, *hidden]
        layers: list[nn.Module] = []
        for n, m in pairwise(sizes):
            layers += [nn.Linear(n, m), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], math.prod(image)), nn.Sigmoid())

    def forward(self, routed: Routed, chosen: Tensor | None = None) -> Tensor:
        pose = routed.pose
        check_floating("pose", pose)
        if tuple(pose.shape[1:]) != (self.capsules, self.dim):
            raise ValueError(f"pose: expected (B, {self.capsules}, {self.dim}), got {tuple(pose.shape)}")
        weight = next(self.layers.parameters())
        check_devices(weight, pose=pose)
        check_dtype("pose", pose, weight)
        if chosen is None:
            a = length(pose) if routed.activation is None else routed.activation
            chosen = torch.argmax(a, 1)
        drawn: Tensor = self.layers(mask_capsules(pose, chosen).flatten(1))
        return drawn.view(-1, *self.image)
