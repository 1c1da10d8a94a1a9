"""smallNORB (LeCun, Huang, Bottou 2004): 24,300 + 24,300 stereo pairs of toys, 96 x 96.

Its binary matrix format, little-endian: magic, number of dimensions, at least three sizes, values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from .files import Root, check_labels, locate, read_bytes, wrong
from .split import Dataset, Split
from .urls import Published, Remote, published
from .viewpoints import hold_out_views

CLASSES = ("animal", "human", "airplane", "truck", "car")
# column of the info file: name and highest value; azimuth is 0, 2, .., 34 (times 10 degrees)
INFO = (("instance", 9), ("elevation", 8), ("azimuth", 34), ("lighting", 5))
_STEMS = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
# checksums as published
_FILES = Published("smallnorb", tuple(
    Remote(f"{_STEMS[part]}-{kind}.mat.gz",
           (f"https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/{_STEMS[part]}-{kind}.mat.gz",), size, f"sha256:{sha}")
    for part, kind, size, sha in (
        ("train", "dat", 131_896_188, "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873"),
        ("train", "cat", 348, "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa"),
        ("train", "info", 71_052, "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32"),
        ("test", "dat", 130_799_817, "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474"),
        ("test", "cat", 347, "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff"),
        ("test", "info", 10_428, "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2"),
    )
))  # fmt: skip
_MAGIC = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}


def read_matrix(path: Path, dtype: str, dims: int) -> np.ndarray:
    """A matrix of bytes ("u1") or 32-bit integers ("<i4"), .gz or raw, with `dims` dimensions."""
    raw = read_bytes(path)
    header = 8 + 4 * max(3, dims)
    if len(raw) < header:
        raise wrong(path, f"a header of {header} bytes", f"{len(raw)} bytes")
    magic, found_dims = np.frombuffer(raw, "<i4", 2).tolist()
    if _MAGIC.get(magic) != np.dtype(dtype):
        expected = next(m for m, d in _MAGIC.items() if d == np.dtype(dtype))
        raise wrong(path, f"magic {expected:#x} (matrix of {dtype})", f"{magic & 0xFFFFFFFF:#x}")
    if found_dims != dims:
        raise wrong(path, f"{dims} dimensions", found_dims)
    shape = np.frombuffer(raw, "<i4", dims, 8).tolist()
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if min(shape) < 0 or len(raw) - header != size:
        raise wrong(path, f"{size:,} bytes of {' x '.join(map(str, shape))}", f"{len(raw) - header:,}")
    return np.frombuffer(raw, dtype, offset=header).reshape(shape)


def _split(root: Root, part: str) -> Split:
    folders = ("smallnorb", "smallNORB", "norb")
    dat, cat, info = (locate("smallnorb", root, folders, (f"{_STEMS[part]}-{kind}.mat.gz",))
                      for kind in ("dat", "cat", "info"))
    images, labels, columns = read_matrix(dat, "u1", 4), read_matrix(cat, "<i4", 1), read_matrix(info, "<i4", 2)
    if images.shape[1] != 2:
        raise wrong(dat, "stereo pairs (N, 2, H, W)", images.shape)
    check_labels(cat, labels, len(images), 0, len(CLASSES) - 1)
    if columns.shape[1] != len(INFO):
        raise wrong(info, f"{len(INFO)} columns", columns.shape[1])
    for column, (name, high) in zip(columns.T, INFO, strict=True):
        check_labels(info, column, len(images), 0, high, name)
    extra = {name: torch.from_numpy(columns[:, i].astype(np.int64)) for i, (name, _) in enumerate(INFO)}
    return Split(torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64)), extra)


@published(_FILES)
def smallnorb(
    root: Root = None, *, held_out_azimuths: Iterable[int] = (), held_out_elevations: Iterable[int] = ()
) -> Dataset:
    """root/smallnorb/*-{dat,cat,info}.mat, .gz or raw.

    info: instance (4 6 7 8 9 in training, 0 1 2 3 5 in test), elevation 0-8, azimuth 0, 2, .., 34, lighting 0-5.
    held_out_azimuths, held_out_elevations: viewpoints to test on and not to train on, as `hold_out_views` says.
    """
    train, test = (_split(root, part) for part in ("train", "test"))
    height, width = train.images.shape[2:]
    whole = Dataset("smallnorb", train, test, classes=5, shape=(2, height, width), class_names=CLASSES)
    return hold_out_views(whole, held_out_azimuths, held_out_elevations)
