"""MNIST (LeCun, Cortes, Burges 1998): 60,000 + 10,000 digits, 28 x 28."""

from __future__ import annotations

from .files import Root
from .idx import idx_dataset, idx_files
from .split import Dataset
from .urls import Published, published

# checksums computed from a copy
MNIST = Published("mnist", idx_files(
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


@published(MNIST)
def mnist(root: Root = None) -> Dataset:
    """root/mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte, .gz or raw."""
    return idx_dataset("mnist", root, ("mnist", "MNIST"), tuple("0123456789"))
