"""Centres a drawing as in MNIST: its bounding box scaled to 20 pixels, its centre of mass in the middle of 28 x 28."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 28
BOX = 20
FAINT = 200.0  # thin lines fade when scaled down; below this maximum the ink is stretched to 255
PAPER = 0.25  # share of the contrast of a photograph below which a pixel is paper


def ink_box(picture: Tensor) -> tuple[slice, slice] | None:
    """The bounding box of the ink in (H, W); None for an empty sheet."""
    rows, columns = picture.any(1).nonzero()[:, 0], picture.any(0).nonzero()[:, 0]
    if not len(rows):
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def center(picture: Tensor) -> Tensor | None:
    """uint8 (H, W), ink high -> uint8 (28, 28), or None for an empty sheet.

    The longer side of the bounding box becomes 20 pixels. A whole-pixel shift puts the centre of mass, in coordinates
    of pixel centres, into [13.5, 14.5), where it is in every MNIST digit, so that these do not change.
    """
    box = ink_box(picture)
    if box is None:
        return None
    ink = picture[box].float()
    h, w = (max(1, round(n * BOX / max(ink.shape))) for n in ink.shape)
    if max(ink.shape) > BOX:
        ink = averages(ink.shape[0], h) @ ink @ averages(ink.shape[1], w).T
    elif max(ink.shape) < BOX:
        ink = F.interpolate(ink[None, None], (h, w), mode="bilinear", align_corners=False)[0, 0]
    top = float(ink.max())
    if top < FAINT:
        ink = ink * (255 / max(top, 1e-6))
    y, x = (shift(ink.sum(1 - axis), SIDE - n) for axis, n in enumerate((h, w)))
    out = torch.zeros(SIDE, SIDE)
    out[y : y + h, x : x + w] = ink
    return out.round().clamp(0, 255).to(torch.uint8)


def averages(n: int, m: int) -> Tensor:
    """(m, n): row o is the share of each of n pixels in the o-th of m equal parts; rows sum to 1."""
    edges, pixels = torch.arange(m + 1, dtype=torch.float64) * (n / m), torch.arange(n, dtype=torch.float64)
    begin, end = torch.maximum(edges[:-1, None], pixels), torch.minimum(edges[1:, None], pixels + 1)
    return ((end - begin).clamp(min=0) * (m / n)).float()


def shift(ink: Tensor, room: int) -> int:
    """The offset, within 0 .. room, that puts the centre of mass of a profile (n,) in the middle."""
    mass = ink.double()
    middle = float((mass * torch.arange(len(mass))).sum() / mass.sum())
    return min(max(math.ceil(SIDE / 2 - 0.5 - middle), 0), room)


def to_ink(grey: Tensor) -> Tensor:
    """A photograph or scan, uint8 (H, W), as ink: what differs from the border; paper becomes 0."""
    border = torch.cat([grey[0], grey[-1], grey[:, 0], grey[:, -1]]).float()
    paper = border.median()
    ink = (paper - grey.float()) if paper > 127 else (grey.float() - paper)
    top = float(ink.max())
    if top < 16:  # a sheet without contrast: noise, not ink
        return torch.zeros_like(grey)
    ink = (ink / top).clamp(0, 1)
    return (ink * (ink > PAPER) * 255).round().to(torch.uint8)


def fit(digit: Tensor, height: int, width: int) -> Tensor:
    """A centred 28 x 28 digit in the middle of a model's image if it fits, else resized. uint8 (H, W)"""
    if min(height, width) < SIDE or max(height, width) > 2 * SIDE:
        scaled = F.interpolate(digit[None, None].float(), (height, width), mode="bilinear", align_corners=False)
        return scaled[0, 0].round().to(torch.uint8)
    out = digit.new_zeros(height, width)
    y, x = (height - SIDE) // 2, (width - SIDE) // 2
    out[y : y + SIDE, x : x + SIDE] = digit
    return out
