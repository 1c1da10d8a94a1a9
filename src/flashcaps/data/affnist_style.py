"""Translated MNIST and affNIST-style: digits on 40 x 40, moved only, or turned, sheared, scaled and moved.

affNIST-style is a stand-in for affNIST (see affnist.py), made here from MNIST's test digits: numbers measured on
it are not affNIST's, and are named so. Both sets are pure functions of (seed, index of the digit).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .augment import center_crop, random_crop
from .files import Root
from .mnist import MNIST, mnist
from .random import uniform
from .split import Dataset, Split
from .urls import published

CANVAS = 40
ROTATION, SHEAR, SCALE = 20.0, 0.2, (0.8, 1.2)
_CHUNK = 4096


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
    """The corners (B, 4, 2), as (x, y) from the centre, of the box around each image's ink."""
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


def warp(images: Tensor, matrix: Tensor, place: Tensor, canvas: int = CANVAS) -> Tensor:
    """images (B, C, H, W) uint8 under matrix (B, 2, 2), placed on a canvas so that all ink stays on it.

    place (B, 2) in [0, 1]: where between its left- and topmost and its right- and bottommost possible place.
    """
    height, width = images.shape[2:]
    corners = _ink_corners(images) @ matrix.transpose(1, 2)
    first, last = -canvas / 2 - corners.amin(1), canvas / 2 - corners.amax(1)  # least and greatest move, (B, 2)
    move = torch.where(first <= last, first + place * (last - first), (first + last) / 2)
    axis = torch.arange(canvas, device=images.device) + 0.5 - canvas / 2
    points = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1).view(1, -1, 2) - move[:, None]
    a, b, c, d = matrix.flatten(1).unbind(1)
    inverse = torch.stack([d, -b, -c, a], dim=1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
    grid = (points @ inverse.transpose(1, 2)) * 2 / torch.tensor([width, height], device=images.device)
    grid = grid.view(-1, canvas, canvas, 2)
    moved = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved.round_().to(torch.uint8)


def translated(split: Split, *, seed: int, canvas: int = CANVAS) -> Split:
    """Each digit anywhere on the canvas, nothing else done to it."""
    spare = canvas - split.images.shape[2]
    offsets = (uniform(seed, torch.arange(len(split), device=split.labels.device), 2) * (spare + 1)).long()
    return replace(split, images=random_crop(split.images, canvas, spare, offsets=offsets))


def transformed(split: Split, *, seed: int, copies: int = 1, canvas: int = CANVAS) -> Split:
    """`copies` random affine versions of each digit; info says which digit each came from."""
    source = torch.arange(len(split) * copies, device=split.labels.device)
    parts = []
    for index in source.split(_CHUNK):
        u = uniform(seed, index, 6)
        parts.append(warp(split.images[index % len(split)], random_affine(u[:, :4]), u[:, 4:], canvas))
    digit = source % len(split)
    return Split(torch.cat(parts), split.labels[digit], {"digit": digit})


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
def affnist_style(root: Root = None, *, seed: int = 0, centred: bool = False, copies: int = 1) -> Dataset:
    """Trained on translated MNIST, tested on transformed test digits, `copies` of each (affNIST itself has 32)."""
    base = translated_mnist(root, seed=seed, centred=centred)
    test = transformed(mnist(root).test, seed=seed + 2, copies=copies)
    return replace(base, name="affnist_style", test=test)
