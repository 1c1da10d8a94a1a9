"""IDX: the format of MNIST and its relatives (big-endian; magic 0, 0, type, dimensions)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from .files import Root, check_labels, locate, read_bytes, wrong
from .split import Dataset, Split
from .urls import Remote

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dims: int) -> np.ndarray:
    """An IDX file of unsigned bytes, .gz or raw, as an array of `dims` dimensions."""
    raw = read_bytes(path)
    magic = bytes([0, 0, _UNSIGNED_BYTE, dims])
    if raw[:4] != magic:
        raise wrong(path, f"magic {magic.hex()} (unsigned bytes, {dims} dimensions)", raw[:4].hex() or "an empty file")
    header = 4 + 4 * dims
    if len(raw) < header:
        raise wrong(path, f"a header of {header} bytes", f"{len(raw)} bytes")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", dims, 4))
    if len(raw) - header != math.prod(shape):
        raise wrong(path, f"{math.prod(shape):,} bytes of {' x '.join(map(str, shape))}", f"{len(raw) - header:,}")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _split(name: str, root: Root, folders: tuple[str, ...], prefix: str) -> Split:
    # the digits' authors wrote "train-images-idx3-ubyte"; some unpackers write "train-images.idx3-ubyte"
    stems = [(f"{prefix}-{kind}-idx{n}-ubyte.gz", f"{prefix}-{kind}.idx{n}-ubyte") for kind, n in
             (("images", 3), ("labels", 1))]
    image_path, label_path = (locate(name, root, folders, stem) for stem in stems)
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    check_labels(label_path, labels, len(images), 0, 9)
    return Split(torch.from_numpy(images.copy())[:, None], torch.from_numpy(labels.astype(np.int64)))


def idx_files(hosts: tuple[str, ...], *rows: tuple[str, int, str, str]) -> tuple[Remote, ...]:
    """Published files, from (stem, size, md5 of the .gz, sha256 of what it unpacks to) of each."""
    return tuple(
        Remote(f"{stem}-ubyte.gz", tuple(f"{host}{stem}-ubyte.gz" for host in hosts), size, f"md5:{md5}",
               f"sha256:{content}")
        for stem, size, md5, content in rows
    )  # fmt: skip


def idx_dataset(name: str, root: Root, folders: tuple[str, ...], class_names: tuple[str, ...]) -> Dataset:
    """The four files of MNIST or of a drop-in replacement."""
    train, test = (_split(name, root, folders, prefix) for prefix in ("train", "t10k"))
    height, width = train.images.shape[2:]
    if test.images.shape[2:] != train.images.shape[2:]:
        raise ValueError(
            f"{name}: expected {height} x {width} test images like the training images, "
            f"got {tuple(test.images.shape[2:])}; the files are of different data sets"
        )
    return Dataset(name, train, test, classes=10, shape=(1, height, width), class_names=class_names)
