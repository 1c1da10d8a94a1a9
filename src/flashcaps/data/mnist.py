"""MNIST (LeCun, Cortes, Burges 1998): 60,000 + 10,000 digits, 28 x 28."""

from __future__ import annotations

from .files import Root
from .idx import idx_dataset
from .types import Dataset


def mnist(root: Root = None) -> Dataset:
    """root/mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte, .gz or raw."""
    return idx_dataset("mnist", root, ("mnist", "MNIST"), tuple("0123456789"))
