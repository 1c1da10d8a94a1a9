"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 pieces of clothing, 28 x 28."""

from __future__ import annotations

from .files import Root
from .idx import idx_dataset
from .types import Dataset

CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


def fashion_mnist(root: Root = None) -> Dataset:
    """root/fashion-mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte, .gz or raw."""
    return idx_dataset("fashion_mnist", root, ("fashion-mnist", "fashion_mnist", "FashionMNIST"), CLASSES)
