"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 pieces of clothing, 28 x 28."""

from __future__ import annotations

from .files import Root
from .idx import idx_dataset, idx_files
from .split import Dataset
from .urls import Published, published

CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip

# checksums computed from a copy of the same gzip stream under another header
FASHION = Published("fashion-mnist", idx_files(
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


@published(FASHION)
def fashion_mnist(root: Root = None) -> Dataset:
    """root/fashion-mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte, .gz or raw."""
    return idx_dataset("fashion_mnist", root, ("fashion-mnist", "fashion_mnist", "FashionMNIST"), CLASSES)
