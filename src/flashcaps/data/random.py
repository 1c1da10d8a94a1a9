"""Random numbers as a pure function of (seed, index): the same on every device, in any order, in any batch."""

from __future__ import annotations

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014) in wrapping int64: its increment and the two multipliers of its mixer.
_GOLDEN, _MIX1, _MIX2 = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
DRAW_BITS = 62
_DRAW_MASK = (1 << DRAW_BITS) - 1


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # int64 shifts copy the sign bit; a hash needs zeros


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    return x ^ _shift_right(x, 31)


def draws(seed: int, index: Tensor, count: int) -> Tensor:
    """index (B,) int64 -> (B, count) int64, uniform on 0 .. 2^62 - 1."""
    stream = torch.arange(1, count + 1, device=index.device)
    state = _mix(_mix(index * _GOLDEN + seed)[:, None] + stream * _GOLDEN)
    return _mix(state) & _DRAW_MASK


def uniform(seed: int, index: Tensor, count: int) -> Tensor:
    """index (B,) int64 -> (B, count) float32, uniform on [0, 1)."""
    return (draws(seed, index, count) >> (DRAW_BITS - 24)).float() * 2.0**-24


def make_generator(seed: int) -> torch.Generator:
    """A generator with its own random numbers for every seed."""
    return torch.Generator().manual_seed(int(draws(seed, torch.tensor([0]), 1)))
