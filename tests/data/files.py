"""Small files in the published formats, written byte by byte and not with the readers' own code."""

import gzip
import struct
from pathlib import Path

import numpy as np
import torch

from flashcaps.data import Dataset

NORB = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, arrays: dict[str, np.ndarray], packed: bool = True) -> None:
    """The IDX files of MNIST, by their stem."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, array in arrays.items():
        raw = idx_bytes(array)
        (folder / (f"{stem}.gz" if packed else stem)).write_bytes(gzip.compress(raw) if packed else raw)


def write_digits(folder: Path, *, packed: bool = True) -> dict[str, np.ndarray]:
    """Sixty digits and thirty; digit n of a split has class n % 10 and its ink in the 20 x 20 box, as MNIST does."""
    rng = np.random.default_rng(0)
    written = {}
    for prefix, count in (("train", 60), ("t10k", 30)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 4:24, 4:24] = rng.integers(1, 256, (count, 20, 20))
        written |= {f"{prefix}-images-idx3-ubyte": images, f"{prefix}-labels-idx1-ubyte": np.arange(count) % 10}
    write_mnist(folder, written, packed)
    return written


def norb_bytes(array: np.ndarray) -> bytes:
    """smallNORB's format: magic, dimensions, at least three sizes, values, little-endian throughout."""
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[str(array.dtype)]
    sizes = [*array.shape, *[1] * (3 - array.ndim)]
    return struct.pack(f"<ii{len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def write_norb(folder: Path, dataset: Dataset) -> None:
    """A data set of toys as smallNORB's six files."""
    folder.mkdir(parents=True)
    for split, stem in ((dataset.train, NORB["train"]), (dataset.test, NORB["test"])):
        info = torch.stack([split.info[name] for name in ("instance", "elevation", "azimuth", "lighting")], 1)
        for kind, column in (("dat", split.images), ("cat", split.labels.int()), ("info", info.int())):
            (folder / f"{stem}-{kind}.mat").write_bytes(norb_bytes(column.numpy()))
