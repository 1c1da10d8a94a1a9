"""DiverseMultiMNIST (attention routing, appendix B.2): one digit (1/6) or two overlapping ones (5/6) on 36 x 36."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .files import Root
from .mnist import MNIST
from .multimnist import MultiMNIST, multimnist
from .split import Batch, Dataset
from .urls import published


class DiverseMultiMNIST(MultiMNIST):
    """As MultiMNIST; where there is one digit, the second source is black and its label -1."""

    columns = 7

    def compose(self, draw: Tensor) -> Batch:
        pair = super().compose(draw)
        assert pair.sources is not None
        assert pair.labels is not None
        single = draw[:, 6] % 6 == 0
        second = torch.where(single[:, None, None, None], 0.0, pair.sources[:, 1])
        labels = torch.stack([pair.labels[:, 0], torch.where(single, -1, pair.labels[:, 1])], dim=1)
        return self._overlay(torch.stack([pair.sources[:, 0], second], dim=1), labels)


@published(MNIST)
def diverse_multimnist(root: Root = None) -> Dataset:
    """MNIST's digits, to be composed: train images from training digits, test images from test digits."""
    return replace(multimnist(root), name="diverse_multimnist", compose=DiverseMultiMNIST)
