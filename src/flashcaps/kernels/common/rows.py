"""What all kernels share: which tensors they take, and how they address rows, the D numbers of a pose each.

torch gives each row of a normalisation a block of threads, and copies poses that lie across channels before it reads
them. Here a program takes many rows, from any layout.
"""

from __future__ import annotations

import importlib.util
import math
from typing import NamedTuple

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None  # asked once: torch.compile cannot trace the question
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LONGEST = 128  # elements of a row that is kept in registers
TILE = 2048  # elements of a program's tile, 16 for each of its threads
PROGRAMS = 1024  # that sum over all rows: several for each multiprocessor of a large GPU


def fused(x: Tensor) -> bool:
    """Whether the kernels take x; where they do not, torch's own operators do the same."""
    if not (HAS_TRITON and x.is_cuda) or torch.compiler.is_exporting():
        return False
    return x.dtype in DTYPES and x.numel() > 0


def power_of_two(n: int) -> int:
    """The smallest that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def empty_fp32(like: Tensor, *shape: int) -> Tensor:
    """On the same device."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


Parts = list[tuple[tuple[int, ...], torch.dtype]]  # shapes and dtypes of tensors that share their memory


def memory_for(like: Tensor, parts: Parts) -> Tensor:
    """One piece of memory for all of them: torch takes as long to allocate it as one of its parts."""
    return torch.empty(sum(_bytes(*part) for part in parts), dtype=torch.uint8, device=like.device)


def carve(memory: Tensor, parts: Parts) -> list[Tensor]:
    """The tensors in that memory."""
    found, at = [], 0
    for shape, dtype in parts:
        size = math.prod(shape) * dtype.itemsize
        found.append(memory[at : at + size].view(dtype).view(shape))
        at += _bytes(shape, dtype)
    return found


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """In whole lines of a GPU's cache."""
    return ceil_div(math.prod(shape) * dtype.itemsize, 128) * 128


def tile(rows: int, dim: int) -> tuple[int, dict[str, int]]:
    """How many tiles cover so many rows of `dim` numbers, and a kernel's constants."""
    columns = power_of_two(dim)
    height = min(power_of_two(rows), max(TILE // columns, 1))
    warps = max(height * columns // (TILE // 4), 1)
    return ceil_div(rows, height), {"D": dim, "DP": columns, "ROWS": height, "num_warps": warps}


class Rows(NamedTuple):
    """Where the rows of x (..., D) lie: n0 x n1 x n2 of them, and the strides of those axes and of D."""

    n0: int
    n1: int
    n2: int
    s0: int
    s1: int
    s2: int
    sd: int

    @property
    def arguments(self) -> tuple[int, ...]:
        """What kernels are passed: n0 follows from their number."""
        return self[1:]

    def tile(self, dim: int) -> tuple[int, dict[str, int]]:
        """Tiles of all rows, none of which crosses the first two axes, and a kernel's constants."""
        tiles, constants = tile(self.n2, dim)
        return self.n0 * self.n1 * tiles, constants


def rows_of(x: Tensor) -> tuple[Tensor, Rows]:
    """x and its rows; x is copied if its rows lie along more than three axes."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    if len(axes) > 3:
        return rows_of(x.contiguous())
    (n0, s0), (n1, s1), (n2, s2) = [(1, 0)] * (3 - len(axes)) + axes
    return x, Rows(n0, n1, n2, s0, s1, s2, x.stride(-1))


def with_gradient(x: Tensor) -> tuple[Tensor, Rows, Tensor]:
    """x, its rows, and an empty tensor in which the gradients of these rows lie alike."""
    y, rows = rows_of(x)
    gradient = torch.empty_like(y)
    if gradient.stride() == y.stride():
        return y, rows, gradient
    y, rows = rows_of(x.contiguous())  # overlapping, or with gaps
    return y, rows, torch.empty_like(y)


def laid_out_like(x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient as `torch.empty_like(x)` would lie, which compilers are promised."""
    if gradient.stride() == torch.empty_like(x, device="meta").stride():
        return gradient
    return torch.empty_like(x).copy_(gradient)
