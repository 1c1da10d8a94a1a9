"""affNIST (Tieleman 2013): MNIST digits under small affine transformations on 40 x 40; 320,000 in the test set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from .affnist_style import CANVAS, translated_mnist
from .files import Root, check_labels, data_root, load_mat, locate, wrong
from .mnist import MNIST
from .split import Dataset, Split, join
from .urls import Member, Published, Remote, published

_FILES = Published("affnist", (Remote(  # checksum as published
    "test.mat.zip", ("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip",), 121_743_191,
    "sha256:2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a",
    members=(Member("test.mat", "test.mat"),),
),))  # fmt: skip


def read_affnist(path: Path) -> Split:
    """One published .mat file: a struct affNISTdata with image (1600, N) uint8, row by row, and label_int (1, N)."""
    data = load_mat(path, "affNISTdata")
    for key in ("image", "label_int"):
        if data.dtype.names is None or key not in data.dtype.names:
            raise wrong(path, f"a struct with {key!r}", data.dtype.names or data.dtype)
    image, label = data["image"].flat[0], data["label_int"].flat[0].astype(np.int64).reshape(-1)
    if image.dtype != np.uint8 or image.ndim != 2 or image.shape[0] != CANVAS * CANVAS:
        raise wrong(path, f"image uint8 ({CANVAS * CANVAS}, N)", f"{image.dtype} {image.shape}")
    check_labels(path, label, image.shape[1], 0, 9)
    images = torch.from_numpy(np.ascontiguousarray(image.T)).view(-1, 1, CANVAS, CANVAS)
    return Split(images, torch.from_numpy(label))


@published(MNIST, _FILES)
def affnist(root: Root = None, *, seed: int = 0, centred: bool = False) -> Dataset:
    """The paper's experiment: trained on translated MNIST (root/mnist), tested on root/affnist/test.mat.

    test_batches/*.mat, the same images in 32 files, are read as well.
    """
    base = translated_mnist(root, seed=seed, centred=centred)
    batches = sorted((data_root(root) / "affnist" / "test_batches").glob("*.mat"), key=lambda p: (len(p.name), p.name))
    try:
        parts = [read_affnist(locate("affnist", root, ("affnist", "affNIST"), ("test.mat",)))]
    except FileNotFoundError:
        if not batches:
            raise
        parts = [read_affnist(path) for path in batches]
    return replace(base, name="affnist", test=join(parts))
