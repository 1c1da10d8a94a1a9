"""What each output of a convolutional layer looks at: one kernel on a GPU, forward and backward.

Backward, each place of the input sums the patches that hold it, in the order of the kernel: one read, one write, the
same bits every time, in the layout of the input.

Kernels that take a `Window` read patches where they lie in the image, which at stride 1 has k * k times fewer numbers,
and have their gradients folded back a few examples at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...routing import votes
from .rows import TILE, Tiles, fused, power_of_two


def patches(u: Tensor, kernel: int, stride: int) -> Tensor:
    """(B, T, H, W, D) -> (B, H', W', T * k * k, D): `votes.patches`, in one kernel where there is one."""
    return gather_patches(u, kernel, stride) if fused(u) else votes.patches(u, kernel, stride)


def _grid(height: int, width: int, kernel: int, stride: int) -> tuple[int, int]:
    """Places of the output."""
    return (height - kernel) // stride + 1, (width - kernel) // stride + 1


class Window(NamedTuple):
    """Where the children of every place lie in an image u (B, T, H, W, D), whose poses are whole."""

    kernel: int
    stride: int
    height: int  # places of the output
    width: int
    strides: tuple[int, ...]  # of the image: example, type, row, column

    @property
    def places(self) -> int:
        return self.height * self.width

    @property
    def constants(self) -> dict[str, int]:
        """What `place_at` and `child_at` are told."""
        sb, st, sy, sx = self.strides
        place = {"OH": self.height, "OW": self.width, "SB": sb, "PY": self.stride * sy, "PX": self.stride * sx}
        return {**place, "K": self.kernel, "ST": st, "SY": sy, "SX": sx}

    def spans(self, batch: int, examples: int) -> Iterator[tuple[slice, slice]]:
        """A few examples at a time, and their rows (b, y, x)."""
        for first in range(0, batch, examples):
            last = min(first + examples, batch)
            yield slice(first, last), slice(first * self.places, last * self.places)


def windowed(u: Tensor, kernel: int, stride: int) -> tuple[Tensor, Window]:
    """u, copied unless it has no gaps and its poses are whole, and its window."""
    if u.stride(-1) != 1 or u.stride() != torch.empty_like(u, device="meta").stride():
        u = u.contiguous()
    return u, Window(kernel, stride, *_grid(u.shape[2], u.shape[3], kernel, stride), u.stride()[:4])


def fold(g: Tensor, out: Tensor, window: Window, again: bool = False) -> None:
    """The gradient out (B, T, H, W, D) from that of patches g (B * H' * W', T * k * k, ...), added to what is there
    if `again`.
    """
    from . import patches_triton as kernels

    b, t, h, w, d = out.shape
    tiles = _tiles(t, d)
    kernels.scatter[(b * h * w, tiles.total)](
        g, out, t, h, w, window.height, window.width, *out.stride(), int(again), D=d, KERNEL=window.kernel,
        STRIDE=window.stride, **tiles.options,
    )  # fmt: skip


def _tiles(rows: int, dim: int) -> Tiles:
    """Rows of one place, in tiles."""
    columns = power_of_two(dim)
    height = max(min(power_of_two(rows), TILE // columns), 1)
    return Tiles(height, columns, -(-rows // height))


@torch.library.custom_op("flashcaps::gather_patches", mutates_args=())
def gather_patches(u: Tensor, kernel: int, stride: int) -> Tensor:
    """(B, T, H, W, D) of any strides -> (B, H', W', T * k * k, D), contiguous."""
    from . import patches_triton as kernels

    b, t, h, w, d = u.shape
    oh, ow = _grid(h, w, kernel, stride)
    out = torch.empty(b, oh, ow, t * kernel * kernel, d, dtype=u.dtype, device=u.device)
    tiles = _tiles(t * kernel * kernel, d)
    kernels.gather[(b * oh * ow, tiles.total)](
        u, out, t, oh, ow, *u.stride(), D=d, KERNEL=kernel, STRIDE=stride, **tiles.options
    )
    return out


@gather_patches.register_fake
def _(u, kernel, stride):
    b, t, h, w, d = u.shape
    return u.new_empty(b, *_grid(h, w, kernel, stride), t * kernel * kernel, d)


@torch.library.custom_op("flashcaps::scatter_patches", mutates_args=())
def scatter_patches(g: Tensor, size: list[int], strides: list[int], kernel: int, stride: int) -> Tensor:
    """The gradient of u, of this size and strides, from g (B, H', W', T * k * k, D)."""
    out = torch.empty_strided(size, strides, dtype=g.dtype, device=g.device)
    fold(g.contiguous(), out, Window(kernel, stride, *_grid(size[2], size[3], kernel, stride), ()))
    return out


@scatter_patches.register_fake
def _(g, size, strides, kernel, stride):
    return torch.empty_strided(size, strides, dtype=g.dtype, device=g.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u, ctx.kernel, ctx.stride = inputs
    ctx.size, ctx.strides = u.shape, torch.empty_like(u, device="meta").stride()  # u's own, where it has no gaps


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return scatter_patches(g, ctx.size, ctx.strides, ctx.kernel, ctx.stride), None, None


gather_patches.register_autograd(_backward, setup_context=_keep)
