"""smallNORB (LeCun, Huang, Bottou 2004): 24,300 + 24,300 stereo pairs of toys, 96 x 96.

Its files are binary matrices, little-endian: magic, number of dimensions, at least three sizes, values. smallNORB and
synthetic-NORB hold out viewpoints in the same way.
"""

import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .files import Published, Remote, Root, check_labels, locate, published, read_array, wrong
from .split import Dataset, Split

AZIMUTHS, ELEVATIONS = 18, 9  # steps of 20 degrees from 0, and of 5 degrees from 30
Indices = Iterable[int] | None
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
_MAGIC = {"u1": 0x1E3D4C55, "<i4": 0x1E3D4C54}


def read_matrix(path: Path, dtype: str, dims: int) -> np.ndarray:
    """A matrix of bytes ("u1") or 32-bit integers ("<i4"), .gz or raw, with `dims` dimensions."""
    return read_array(path, struct.pack("<ii", _MAGIC[dtype], dims), "<i4", dims, dtype, stored=3)


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


def hold_out_views(
    dataset: Dataset, held_out_azimuths: Iterable[int] = (), held_out_elevations: Iterable[int] = ()
) -> Dataset:
    """Train on familiar viewpoints, test on novel ones; `validation` is the test's instances from familiar viewpoints.

    Novel examples have a held-out azimuth (step 0..17) or elevation (step 0..8), familiar ones have neither. A run's
    curve is measured on familiar viewpoints and its test on novel ones, of the same toys, none of which it was trained
    on. Without viewpoints to hold out, the data set is returned as it is.
    """
    azimuths, elevations = sorted(set(held_out_azimuths)), sorted(set(held_out_elevations))
    if not azimuths and not elevations:
        return dataset
    check_held_out(azimuths, elevations)

    def is_novel(split: Split) -> Tensor:
        azimuth, elevation = split.info["azimuth"], split.info["elevation"]
        return (torch.isin(azimuth, torch.tensor(azimuths, device=azimuth.device) * 2)
                | torch.isin(elevation, torch.tensor(elevations, device=elevation.device)))

    novel = is_novel(dataset.test)
    indices = {"train": ~is_novel(dataset.train), "familiar": ~novel, "novel": novel}
    for name, mask in indices.items():
        if not mask.any():
            raise ValueError("held_out_azimuths, held_out_elevations: expected steps that leave some viewpoints and "
                             f"are among those there are, got {azimuths}, {elevations}: no {name} examples")
    train, familiar, unseen = (mask.nonzero()[:, 0] for mask in indices.values())
    return replace(dataset, train=dataset.train.select(train), validation=dataset.test.select(familiar),
                   test=dataset.test.select(unseen))


def check_held_out(azimuths: Iterable[int], elevations: Iterable[int]) -> None:
    """Raises for steps that do not exist; holding out none is fine."""
    chosen_steps("held_out_azimuths", tuple(azimuths) or None, AZIMUTHS)
    chosen_steps("held_out_elevations", tuple(elevations) or None, ELEVATIONS)


def chosen_steps(name: str, indices: Indices, count: int) -> list[int]:
    """Sorted unique indices below `count`; all of them for None."""
    chosen = sorted(set(range(count) if indices is None else (int(i) for i in indices)))
    if not chosen or chosen[0] < 0 or chosen[-1] >= count:
        raise ValueError(f"{name}: expected steps from 0 to {count - 1}, at least one, got {chosen}; None means all")
    return chosen
