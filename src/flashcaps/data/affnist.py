"""Digits on 40 x 40: affNIST (Tieleman 2013), MNIST under small affine transformations, 320,000 in the test set;
translated MNIST, to train on; and affNIST-style, MNIST's test digits rotated, sheared, scaled and moved by this module.

affNIST-style is a stand-in for affNIST, and numbers measured on it carry its name. It and translated MNIST are pure
functions of (seed, index of the digit).
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .augment import center_crop, random_crop
from .files import Member, Published, Remote, Root, check_labels, load_mat, locate, published, wrong
from .mnist import MNIST, mnist
from .random import uniform
from .split import Dataset, Split

CANVAS = 40
ROTATION, SHEAR, SCALE = 20.0, 0.2, (0.8, 1.2)
_CHUNK = 4096
_FILES = Published("affnist", (Remote(  # checksum as published
    "test.mat.zip", ("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip",), 121_743_191,
    "sha256:2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a",
    members=(Member("test.mat", "test.mat"),),
),))  # fmt: skip


def random_affine(u: Tensor) -> Tensor:
    """u (B, 4) uniform on [0, 1) -> (B, 2, 2), rotation @ shear @ scale, acting on (x, y).

    Rotation up to 20 degrees either way, shear up to 0.2, width and height scaled by 0.8 to 1.2 each.
    """
    angle = (2 * u[:, 0] - 1) * math.radians(ROTATION)
    k = (2 * u[:, 1] - 1) * SHEAR
    sx, sy = (SCALE[0] + u[:, i] * (SCALE[1] - SCALE[0]) for i in (2, 3))
    cos, sin = angle.cos(), angle.sin()
    top = torch.stack([cos * sx, (cos * k - sin) * sy], dim=1)
    bottom = torch.stack([sin * sx, (sin * k + cos) * sy], dim=1)
    return torch.stack([top, bottom], dim=1)


def _ink_corners(images: Tensor) -> Tensor:
    """The corners (B, 4, 2) of the box around each image's ink, as (x, y) from the centre of the image."""
    ink = images.amax(1) > 0
    edges = []
    for dim in (1, 2):  # columns with ink, then rows with ink
        some = ink.any(dim)
        n = some.shape[1]
        place = torch.arange(n, device=images.device, dtype=torch.float32)
        low = torch.where(some, place, n).amin(1) - n / 2
        high = torch.where(some, place, -1).amax(1) + 1 - n / 2
        edges.append((torch.minimum(low, high), torch.maximum(low, high)))
    (left, right), (top, bottom) = edges
    pairs = ((left, top), (right, top), (left, bottom), (right, bottom))
    return torch.stack([torch.stack(pair, dim=1) for pair in pairs], dim=1)


def warp(images: Tensor, matrix: Tensor, place: Tensor) -> Tensor:
    """images (B, C, H, W) uint8 transformed by matrix (B, 2, 2), and placed so that all ink stays on the canvas.

    place (B, 2) in [0, 1]: (x, y) between the leftmost and the rightmost, the topmost and the bottommost place.
    """
    height, width = images.shape[2:]
    corners = _ink_corners(images) @ matrix.transpose(1, 2)
    first, last = -CANVAS / 2 - corners.amin(1), CANVAS / 2 - corners.amax(1)  # least and greatest move, (B, 2)
    move = torch.where(first <= last, first + place * (last - first), (first + last) / 2)
    axis = torch.arange(CANVAS, device=images.device) + 0.5 - CANVAS / 2
    points = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1).view(1, -1, 2) - move[:, None]
    a, b, c, d = matrix.flatten(1).unbind(1)
    inverse = torch.stack([d, -b, -c, a], dim=1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
    grid = (points @ inverse.transpose(1, 2)) * 2 / torch.tensor([width, height], device=images.device)
    grid = grid.view(-1, CANVAS, CANVAS, 2)
    moved = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved.round_().to(torch.uint8)


def translated(split: Split, *, seed: int) -> Split:
    """Each digit at a random place of the canvas."""
    spare = CANVAS - split.images.shape[2]
    offsets = (uniform(seed, torch.arange(len(split)), 2) * (spare + 1)).long()
    return replace(split, images=random_crop(split.images, CANVAS, spare, offsets))


@published(MNIST)
def translated_mnist(root: Root = None, *, seed: int = 0, centred: bool = False) -> Dataset:
    """MNIST, each digit placed at random on 40 x 40, in training and test.

    centred=True leaves the training digits in the middle, so that augment.shift by 6 places them in every epoch.
    """
    base = mnist(root)
    train = translated(base.train, seed=seed)
    if centred:
        train = replace(base.train, images=center_crop(base.train.images, CANVAS))
    test = translated(base.test, seed=seed + 1)
    return replace(base, name="translated_mnist", train=train, test=test, shape=(1, CANVAS, CANVAS))


@published(MNIST)
def affnist_style(root: Root = None, *, seed: int = 0, centred: bool = False) -> Dataset:
    """Trained on translated MNIST, tested on transformed test digits, one version of each (affNIST itself has 32)."""
    base, digits, parts = translated_mnist(root, seed=seed, centred=centred), mnist(root).test, []
    for index in torch.arange(len(digits)).split(_CHUNK):
        u = uniform(seed + 2, index, 6)
        parts.append(warp(digits.images[index], random_affine(u[:, :4]), u[:, 4:]))
    return replace(base, name="affnist_style", test=replace(digits, images=torch.cat(parts)))


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
    """The paper's experiment: trained on translated MNIST (root/mnist), tested on root/affnist/test.mat."""
    base = translated_mnist(root, seed=seed, centred=centred)
    test = read_affnist(locate("affnist", root, ("affnist", "affNIST"), ("test.mat",)))
    return replace(base, name="affnist", test=test)
