"""Checks of arguments by shape and type alone: values may be on a device."""

from __future__ import annotations

import torch
from torch import Tensor


def check_images(images: Tensor) -> None:
    """Raises unless images are (B, C, H, W), uint8 or floats."""
    if not isinstance(images, Tensor) or images.layout != torch.strided:
        raise TypeError(f"images: expected a dense tensor (B, C, H, W), got {type(images).__name__}")
    if images.ndim != 4:
        raise ValueError(f"images: expected (B, C, H, W), got {tuple(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"images: expected uint8 or floats, got {images.dtype}; convert them with .float()")


def check_whole(least: int = 0, **numbers: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name}: expected a whole number, got {number!r}")
        if not least <= number < 1 << 62:
            raise ValueError(f"{name}: expected at least {least}, got {number}")


def check_integers(name: str, x: Tensor) -> None:
    """Raises unless x is (N,) int64."""
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor (N,) int64, got {type(x).__name__}")
    if x.ndim != 1 or x.dtype != torch.int64:
        raise ValueError(f"{name}: expected (N,) int64, got {tuple(x.shape)} {x.dtype}")
