"""MultiMNIST (dynamic routing, section 6.1): two digits of different classes laid over each other on 36 x 36;
DiverseMultiMNIST (attention routing, appendix B.2): one digit (1/6) or two (5/6).

Each digit is shifted by up to 4 pixels each way and the two are added and clipped at white. (20 x 20 boxes shifted
so share 72.6 % of their area on average; the paper says 80 %.) Pairs are made on the digits' device, from integers that
are a pure function of (seed, index), and are never stored.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..routing.checks import check_sizes
from .augment import window
from .files import Root, published
from .mnist import MNIST, mnist
from .random import draws
from .split import Batch, Dataset, Split, check_integers, to_float


class MultiMNIST:
    """Pairs from the digits of one split, without end.

    at(index, seed) gives pairs of an endless list by their index, the same on every device, so that processes can share
    the list. The first pairs of a seed are a test set.
    """

    columns = 6  # random integers a pair takes: first digit, second digit, two shifts each

    def __init__(self, digits: Split, *, shift: int = 4, classes: int = 10) -> None:
        check_sizes(0, shift=shift)
        check_sizes(2, classes=classes)
        check_integers("labels", digits.labels)
        if 0 in digits.images.shape[1:]:
            raise ValueError(f"images: expected pixels, got {tuple(digits.images.shape)}")
        if len(digits) and not 0 <= int(digits.labels.min()) <= int(digits.labels.max()) < classes:
            raise ValueError(f"labels: expected classes from 0 to {classes - 1}, got {digits.labels.unique().tolist()}")
        count = torch.bincount(digits.labels, minlength=classes)
        if len(digits) == 0 or int(count.max()) == len(digits):
            raise ValueError(f"digits: expected at least two classes, got class counts {count.tolist()}")
        self.shift, self.classes = shift, classes
        self.images, self.labels = digits.images, digits.labels
        self.order = digits.labels.argsort(stable=True)  # the digits in the order of their classes
        self.count = count[digits.labels]  # (N,) how many digits share this one's class, and where they start
        self.start = (count.cumsum(0) - count)[digits.labels]

    def __len__(self) -> int:
        return self.labels.shape[0]

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def at(self, index: Tensor, seed: int = 0) -> Batch:
        """The pairs at index (B,) int64 of the list that belongs to `seed`; each digit comes first equally often."""
        check_integers("index", index)
        check_sizes(-(1 << 62), seed=seed)
        if index.device != self.device:
            raise ValueError(f"index: expected on {self.device} like the digits, got {index.device}")
        first = index % len(self)
        return self.compose(torch.cat([first[:, None], draws(seed, index, self.columns - 1)], dim=1))

    def compose(self, draw: Tensor) -> Batch:
        """draw (B, columns) int64 >= 0 -> the pairs it describes; a pure function."""
        first, second = self._pair(draw)
        sources = torch.stack([self._place(first, draw[:, 2:4]), self._place(second, draw[:, 4:6])], dim=1)
        labels = torch.stack([self.labels[first], self.labels[second]], dim=1)
        return self._overlay(to_float(sources), labels)

    def _pair(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Two digits of different classes: the second uniform over the digits outside the first one's class."""
        total = len(self)
        first = draw[:, 0] % total
        skip = self.start[first] + self.count[first]  # in class order, the others begin after the last of the class
        other = total - self.count[first]
        return first, self.order[(skip + draw[:, 1] % other) % total]

    def _place(self, digit: Tensor, draw: Tensor) -> Tensor:
        """digit (B,) shifted on the large canvas, (B, C, H + 2 shift, W + 2 shift) uint8."""
        height, width = (n + 2 * self.shift for n in self.images.shape[2:])
        corner = draw % (2 * self.shift + 1)  # top left corner of the digit on the canvas
        return window(self.images[digit], -corner, (height, width))

    def _overlay(self, sources: Tensor, labels: Tensor) -> Batch:
        images = sources.sum(1).clamp_(max=1)
        targets = torch.zeros(labels.shape[0], self.classes, device=self.device)
        targets.scatter_(1, torch.where(labels < 0, labels[:, :1], labels), 1.0)  # -1: no second digit
        return Batch(images, targets, labels, sources)


class DiverseMultiMNIST(MultiMNIST):
    """As MultiMNIST; where there is one digit, the second picture is black and its label -1."""

    columns = 7

    def compose(self, draw: Tensor) -> Batch:
        pair = super().compose(draw)
        assert pair.pictures is not None
        assert pair.chosen is not None
        single = draw[:, 6] % 6 == 0
        second = torch.where(single[:, None, None, None], 0.0, pair.pictures[:, 1])
        labels = torch.stack([pair.chosen[:, 0], torch.where(single, -1, pair.chosen[:, 1])], dim=1)
        return self._overlay(torch.stack([pair.pictures[:, 0], second], dim=1), labels)


@published(MNIST)
def multimnist(root: Root = None) -> Dataset:
    """MNIST's digits, to be composed: train pairs from training digits, test pairs from test digits."""
    return replace(mnist(root), name="multimnist", shape=(1, 36, 36), multilabel=True, compose=MultiMNIST)


@published(MNIST)
def diverse_multimnist(root: Root = None) -> Dataset:
    """MNIST's digits, to be composed: train images from training digits, test images from test digits."""
    return replace(multimnist(root), name="diverse_multimnist", compose=DiverseMultiMNIST)
