"""Errors at the boundary: the argument, what was expected, what came, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from torch import Tensor


def nearest(word: str, words: Iterable[str]) -> str:
    """'; did you mean X?' or nothing."""
    close = get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    choices = list(choices)
    if value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name}: expected one of {known}, got {value!r}{nearest(str(value), choices)}")


def check_sizes(least: int = 1, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < least:
            raise ValueError(f"{name}: expected at least {least}, got {size}")


def check_iterations(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations: expected at least 1, got {iterations}")


def check_floating(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point tensor, got {x.dtype}; convert it with .float()")


def check_votes(votes: Tensor) -> tuple[int, int, int, int]:
    """(B, I, J, D) of explicit votes."""
    check_floating("votes", votes)
    if votes.ndim != 4:
        raise ValueError(
            f"votes: expected (B, I, J, D), got {tuple(votes.shape)}; did you forget .view(B, I, J, D)?"
        )
    for axis, size, what in zip("IJD", votes.shape[1:], ("lower capsules", "upper capsules", "pose"), strict=True):
        if size == 0:
            raise ValueError(f"votes: axis {axis} ({what}) is empty in {tuple(votes.shape)}; routing needs some")
    b, i, j, d = votes.shape
    return b, i, j, d


def check_shape(name: str, x: Tensor | None, shapes: tuple[int, ...] | list[tuple[int, ...]], what: str) -> None:
    """`x` is None, or floating point with one of these shapes."""
    if x is None:
        return
    check_floating(name, x)
    allowed = shapes if isinstance(shapes, list) else [shapes]
    if tuple(x.shape) not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise ValueError(f"{name}: expected {wanted} ({what}), got {tuple(x.shape)}")


def check_devices(like: Tensor, **tensors: Tensor | None) -> None:
    for name, x in tensors.items():
        if x is not None and x.device != like.device:
            raise ValueError(f"{name}: expected on the votes' {like.device}, got {x.device}; move it with .to()")
