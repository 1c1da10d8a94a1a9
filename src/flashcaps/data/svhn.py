"""SVHN, cropped digits (Netzer et al. 2011): 73,257 + 26,032 colour house numbers, 32 x 32."""

from pathlib import Path

import numpy as np
import torch

from .files import Published, Remote, Root, check_labels, load_mat, locate, published, wrong
from .split import Dataset, Split

# checksums as published
_FILES = Published("svhn", tuple(
    Remote(file, (f"http://ufldl.stanford.edu/housenumbers/{file}",), size, f"md5:{md5}")
    for file, size, md5 in (
        ("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    )
))  # fmt: skip


def read_svhn(path: Path) -> Split:
    """X (32, 32, 3, N) uint8 and y (N, 1); the digit 0 is written as 10."""
    x, y = load_mat(path, "X"), load_mat(path, "y").astype(np.int64).reshape(-1)
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.ndim != 4:
        raise wrong(path, "X uint8 (32, 32, 3, N)", f"{x.dtype} {x.shape}")
    check_labels(path, y, x.shape[3], 1, 10)
    return Split(torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1))), torch.from_numpy(y % 10))


@published(_FILES)
def svhn(root: Root = None) -> Dataset:
    """root/svhn/{train,test}_32x32.mat."""
    paths = [locate("svhn", root, ("svhn", "SVHN"), (f"{part}_32x32.mat",)) for part in ("train", "test")]
    train, test = (read_svhn(path) for path in paths)
    return Dataset("svhn", train, test, classes=10, shape=(3, 32, 32), class_names=tuple("0123456789"))
