"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images, 32 x 32; the binary version."""

from pathlib import Path

import numpy as np
import torch

from .files import Member, Published, Remote, Root, check_labels, locate, published, read_bytes, wrong
from .split import Dataset, Split

_SITE = "https://www.cs.toronto.edu/~kriz"
# checksums of the six files computed from a copy, the archive's as published
_ARCHIVE10 = Published("cifar10", (Remote(
    "cifar-10-binary.tar.gz", (f"{_SITE}/cifar-10-binary.tar.gz",), 170_052_171, "md5:c32a1d4ab5d03f1284b67883e8d87530",
    members=tuple(
        Member(f"cifar-10-batches-bin/{file}", file, 30_730_000, f"md5:{md5}")
        for file, md5 in (
            ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
            ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
            ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )
    ),
),))  # fmt: skip
_ARCHIVE100 = Published("cifar100", (Remote(  # checksum as published
    "cifar-100-binary.tar.gz", (f"{_SITE}/cifar-100-binary.tar.gz",), 168_513_733,
    "md5:03b5dce01913d631647c71ecec9e9cb8",
    members=(
        Member("cifar-100-binary/train.bin", "train.bin", 153_700_000),
        Member("cifar-100-binary/test.bin", "test.bin", 30_740_000),
    ),
),))  # fmt: skip

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
_PIXELS = 3 * 32 * 32
# label bytes in front of every image, (name, number of classes), the class last
_LABELS = {10: (("labels", 10),), 100: (("coarse labels", 20), ("fine labels", 100))}


def _read(path: Path, classes: int, count: int | None) -> Split:
    """Records of one or two label bytes and 3,072 pixels."""
    raw = np.frombuffer(read_bytes(path), np.uint8)
    record = len(_LABELS[classes]) + _PIXELS
    if raw.size == 0 or raw.size % record:
        raise wrong(path, f"a whole number of records of {record:,} bytes", f"{raw.size:,} bytes")
    records = raw.reshape(-1, record)
    if count is not None and len(records) != count:
        raise wrong(path, f"{count:,} images", f"{len(records):,}")
    columns = [records[:, c].astype(np.int64) for c in range(len(_LABELS[classes]))]
    for column, (name, number) in zip(columns, _LABELS[classes], strict=True):
        check_labels(path, column, len(records), 0, number - 1, name)
    images = torch.from_numpy(records[:, len(columns) :].reshape(-1, 3, 32, 32).copy())
    info = {"coarse": torch.from_numpy(columns[0])} if classes == 100 else {}
    return Split(images, torch.from_numpy(columns[-1]), info)


@published(_ARCHIVE10)
def cifar10(root: Root = None, *, per_file: int | None = 10_000) -> Dataset:
    """root/cifar10/data_batch_{1..5}.bin and test_batch.bin.

    A file does not say how many images it should hold: `per_file` does (None: any number).
    """
    folders = ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin")
    stems = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    paths = [locate("cifar10", root, folders, (f"{stem}.bin",)) for stem in stems]
    *train, test = (_read(path, 10, per_file) for path in paths)
    whole = Split(torch.cat([part.images for part in train]), torch.cat([part.labels for part in train]))
    return Dataset("cifar10", whole, test, classes=10, shape=(3, 32, 32), class_names=CIFAR10)


@published(_ARCHIVE100)
def cifar100(root: Root = None, *, counts: tuple[int, int] | None = (50_000, 10_000)) -> Dataset:
    """root/cifar100/{train,test}.bin; info has the 20 coarse classes.

    A file does not say how many images it should hold: `counts` does, (train, test) (None: any number).
    """
    folders = ("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary")
    paths = [locate("cifar100", root, folders, (f"{stem}.bin",)) for stem in ("train", "test")]
    train, test = (_read(path, 100, count) for path, count in zip(paths, counts or (None, None), strict=True))
    return Dataset("cifar100", train, test, classes=100, shape=(3, 32, 32), class_names=CIFAR100)
