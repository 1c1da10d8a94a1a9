"""MNIST (LeCun, Cortes, Burges 1998) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 images, 28 x 28.

Both are IDX files, big-endian: magic 0, 0, type, dimensions; sizes; values. `digits`, the embedded default, are 5,000
of MNIST's training set that come along in digits.xz: 500 zeros, 500 ones, ..., a byte per pixel.
"""

import lzma
from functools import cache
from pathlib import Path

import numpy as np
import torch

from .files import Published, Remote, Root, check_labels, locate, published, read_array
from .split import Dataset, Split, holdout


def _idx_files(hosts: tuple[str, ...], *rows: tuple[str, int, str, str]) -> tuple[Remote, ...]:
    """Published files, from (stem, size, md5 of the .gz, sha256 of what it unpacks to) of each."""
    return tuple(
        Remote(f"{stem}-ubyte.gz", tuple(f"{host}{stem}-ubyte.gz" for host in hosts), size, f"md5:{md5}",
               f"sha256:{content}")
        for stem, size, md5, content in rows
    )  # fmt: skip


# checksums computed from a copy
MNIST = Published("mnist", _idx_files(
    ("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    ("train-images-idx3", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
     "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    ("train-labels-idx1", 28_881, "d53e105ee54ea40749a09fcbcd1e9432",
     "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ("t10k-images-idx3", 1_648_877, "9fb629c4189551a2d022fa330f9573f3",
     "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    ("t10k-labels-idx1", 4_542, "ec29112dd5afa0611ce80d1b7f02629c",
     "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
))  # fmt: skip
CLOTHES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip

# checksums computed from a copy of the same gzip stream under another header
FASHION = Published("fashion-mnist", _idx_files(
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    ("train-images-idx3", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
     "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    ("train-labels-idx1", 29_515, "25c81989df183df01b3e8a0aad5dffbe",
     "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    ("t10k-images-idx3", 4_422_102, "bef4ecab320f06d8554ea6380940ec79",
     "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    ("t10k-labels-idx1", 5_148, "bb300cfdad3c16e7a12a480ee83cd310",
     "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
))  # fmt: skip


def read_idx(path: Path, dims: int) -> np.ndarray:
    """An IDX file of unsigned bytes, .gz or raw, as an array of `dims` dimensions."""
    return read_array(path, bytes([0, 0, 0x08, dims]), ">u4", dims)


def _split(name: str, root: Root, folders: tuple[str, ...], prefix: str) -> Split:
    # the files are published as "train-images-idx3-ubyte"; some programs unpack "train-images.idx3-ubyte"
    stems = [(f"{prefix}-{kind}-idx{n}-ubyte.gz", f"{prefix}-{kind}.idx{n}-ubyte") for kind, n in
             (("images", 3), ("labels", 1))]
    image_path, label_path = (locate(name, root, folders, stem) for stem in stems)
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    check_labels(label_path, labels, len(images), 0, 9)
    return Split(torch.from_numpy(images.copy())[:, None], torch.from_numpy(labels.astype(np.int64)))


def _dataset(name: str, root: Root, folders: tuple[str, ...], class_names: tuple[str, ...]) -> Dataset:
    """The four files of MNIST or of a drop-in replacement."""
    train, test = (_split(name, root, folders, prefix) for prefix in ("train", "t10k"))
    height, width = train.images.shape[2:]
    if test.images.shape[2:] != train.images.shape[2:]:
        raise ValueError(f"{name}: expected {height} x {width} test images like the training images, got "
                         f"{tuple(test.images.shape[2:])}; the files are of different data sets")
    return Dataset(name, train, test, classes=10, shape=(1, height, width), class_names=class_names)


@published(MNIST)
def mnist(root: Root = None) -> Dataset:
    """root/mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte, .gz or raw."""
    return _dataset("mnist", root, ("mnist", "MNIST"), tuple("0123456789"))


@published(FASHION)
def fashion_mnist(root: Root = None) -> Dataset:
    """root/fashion-mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte, .gz or raw."""
    return _dataset("fashion_mnist", root, ("fashion-mnist", "fashion_mnist", "FashionMNIST"), CLOTHES)


@cache
def _all_digits() -> Split:
    pixels = bytearray(lzma.decompress(Path(__file__).with_name("digits.xz").read_bytes()))
    images = torch.frombuffer(pixels, dtype=torch.uint8).view(-1, 1, 28, 28)
    return Split(images, torch.arange(10).repeat_interleave(500))


def digits(root: Root = None, *, seed: int = 0) -> Dataset:
    """4,000 for training and 1,000 for test, 400 and 100 of each digit; `root` is not needed."""
    train, test = holdout(_all_digits(), count=1_000, seed=seed)
    return Dataset("digits", train, test, classes=10, shape=(1, 28, 28), class_names=tuple("0123456789"))
