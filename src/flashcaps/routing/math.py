"""Squash, length, the softmax over a child's parents, and the Gaussian parents of em and heinsen."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

Grid = tuple[int, int, int, int]  # height and width of a convolutional layer's input, kernel, stride
Softmax = Callable[..., Tensor]  # (logits (B, I, J), leaky=False) -> couplings (B, I, J)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """fp64 if anything is, else fp32: half precision overflows in sums over children and in variances."""
    for t in tensors:
        if t is not None and t.dtype == torch.float64:
            return torch.float64
    return torch.float32


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), which takes torch ten times as long as the question where there is nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast, whose products in half precision would enter softmax, exponentials and variances."""
    if not torch.compiler.is_compiling():  # older versions of torch cannot trace these questions
        kind = device.type
        known = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)
        if not (known and torch.is_autocast_enabled(kind)):
            return nullcontext()
    return torch.autocast(device.type, enabled=False)


def full_precision(function: Callable[P, T]) -> Callable[P, T]:
    """Runs `function` without autocast on the device of its first argument."""

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        first = (*args, *kwargs.values(), None)[0]
        with no_autocast(first.device) if isinstance(first, Tensor) else nullcontext():
            return function(*args, **kwargs)

    return inner


def length(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """||x||, with gradient 0 at x = 0."""
    n: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim, dtype=compute_dtype(x))
    return as_dtype(n, x.dtype)


def squash(s: Tensor, dim: int = -1) -> Tensor:
    r"""Keep the direction of `s`, map its length n to n^2 / (1 + n^2) (dynamic, Eq. 1).

    Written as s * n / (1 + n^2), which has no division by n: value and gradient are exactly 0 at s = 0.
    """
    x = s.to(compute_dtype(s))
    n: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return (x * (n / (1 + n * n))).to(s.dtype)


def over_parents(logits: Tensor, leaky: bool = False) -> Tensor:
    """Softmax over the last axis, the parents (Eq. 3). leaky: one more parent, of logit 0, whose share is dropped."""
    if leaky:
        return F.pad(logits, (0, 1)).softmax(-1)[..., :-1]
    return logits.softmax(-1)


def over_children(logits: Tensor, leaky: bool = False) -> Tensor:
    """Softmax over the children of a parent, in place of Eq. 3."""
    return logits.softmax(1)


def masked(softmax: Softmax, mask: Tensor) -> Softmax:
    """`softmax` over the parents a child can vote for, mask (I, J). A child without any has couplings of 0."""

    def inner(logits: Tensor, leaky: bool = False) -> Tensor:
        lowest = torch.finfo(logits.dtype).min  # not -inf: a row of nothing but -inf would be NaN
        return softmax(logits.masked_fill(~mask, lowest), leaky=leaky) * mask

    return inner


class OverPositions:
    """Softmax over every parent type **and position** that covers a child of a convolutional layer.

    child (P, K): the place of the input that kernel offset k sees at output p. Logits are (B * P, T * K, J), and those
    of one child lie in different rows: sums over its parents are scattered to the child and gathered back. grid: what
    `child` follows from, for kernels.
    """

    def __init__(self, child: Tensor, places: int, grid: Grid | None = None) -> None:
        self.child = child
        self.places = places
        self.grid = grid

    @property
    def kernel(self) -> int:
        return self.child.shape[1]

    def __call__(self, logits: Tensor, leaky: bool = False) -> Tensor:
        (n, i, j), (p, k) = logits.shape, self.child.shape
        b, t = n // p, i // k
        x = logits.view(b, p, t, k, j).permute(0, 2, 1, 3, 4).reshape(b, t, p * k, j)
        index = self.child.reshape(1, 1, p * k).expand(b, t, p * k)
        top = x.new_full((b, t, self.places), 0.0 if leaky else torch.finfo(x.dtype).min)
        top = top.scatter_reduce(2, index, x.detach().amax(-1), "amax")
        e = (x - top.gather(2, index)[..., None]).exp()
        total = torch.zeros_like(top).scatter_add(2, index, e.sum(-1))
        if leaky:
            total = total + (-top).exp()
        c = e / total.clamp(min=torch.finfo(x.dtype).tiny).gather(2, index)[..., None]
        return c.view(b, t, p, k, j).permute(0, 2, 1, 3, 4).reshape(n, i, j)


def weighted_moments(weight: Tensor, votes: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The total weight (B, J), mean and variance (B, J, D) of votes (B, I, J, D) with weight (B, I, J).

    eps is added to the total where it divides, and to the variance.
    """
    total = weight.sum(1)  # (B, J)
    share = weight / (total + eps)[:, None]  # (B, I, J)
    mean = torch.einsum("bij,bijd->bjd", share, votes)  # (B, J, D)
    variance = torch.einsum("bij,bijd->bjd", share, (votes - mean[:, None]).square()) + eps
    return total, mean, variance


def log_density(votes: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(votes; mean, variance) up to the constant of 2 pi, which a softmax over parents cancels. (B, I, J)"""
    mahalanobis = ((votes - mean[:, None]).square() / variance[:, None]).sum(-1)
    return -0.5 * (mahalanobis + variance.log().sum(-1)[:, None])
