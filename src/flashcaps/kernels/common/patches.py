"""Patches of a convolutional layer, what each of its outputs sees: one kernel on a GPU, slices on a CPU.

Backward, each place of the input sums the patches that hold it, in the order of the kernel: one read, one write, the
same bits every time, in the layout of the input.

Kernels that take a `Window` read patches where they lie in the image, which at stride 1 has k * k times fewer numbers.
The gradients of patches are then folded back into the image a few examples at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import votes
from .cpu import eager, is_batched
from .operators import operator
from .replay import launch
from .rows import fused, tile


def patches(u: Tensor, kernel: int, stride: int) -> Tensor:
    """(B, T, H, W, D) -> (B, H', W', T * k * k, D): `votes.patches`, in one kernel where there is one."""
    if fused(u):
        return gather_patches(u, kernel, stride)
    return SlicedPatches.apply(u, kernel, stride) if eager(u) else votes.patches(u, kernel, stride)


def gathered(windows: votes.Windows) -> votes.Votes:
    """The votes of the children in their patches."""
    image, weight, rows, kernel, stride = windows
    return votes.Votes(votes.group(patches(image, kernel, stride).flatten(0, 2), weight.shape[2], rows), weight)


def slices(image: Tensor, patches: Tensor, kernel: int, stride: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For each offset in the kernel the same poses (T, B, H', W', D) as views of the image and of its patches."""
    _, h, w, n, _ = patches.shape
    apart = patches.unflatten(3, (n // kernel**2, kernel, kernel)).permute(4, 5, 3, 0, 1, 2, 6)
    tall, wide = (stride * (side - 1) + 1 for side in (h, w))
    for y, x in product(range(kernel), repeat=2):
        yield image[:, :, y : y + tall : stride, x : x + wide : stride].transpose(0, 1), apart[y, x]


class SlicedPatches(torch.autograd.Function):
    """`votes.patches` on a CPU, laid out as (T, k, k, B, H', W', D), in which the steps of `common.cpu` read them.
    Given the size of an image, its transpose: patches are summed where they overlap. Each is the other's gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int, size: torch.Size | None = None) -> Tensor:
        ctx.arguments = kernel, stride, x.shape if size is None else None
        if size is not None:
            out = x.new_zeros(size)
            for there, here in slices(out, x, kernel, stride):
                there += here
            return out
        out = x.new_empty(x.shape[1] * kernel**2, x.shape[0], *places(x, kernel, stride), x.shape[4]).movedim(0, 3)
        for there, here in slices(x, out, kernel, stride):
            here.copy_(there)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *arguments, size = ctx.arguments
        if is_batched(g) and size is None:
            return votes.patches(g, *arguments), None, None, None
        if is_batched(g):
            with torch.enable_grad():
                x = torch.zeros(size, dtype=g.dtype, requires_grad=True)
                return torch.autograd.grad(votes.patches(x, *arguments), x, g)[0], None, None, None
        return SlicedPatches.apply(g, *ctx.arguments), None, None, None


def places(image: Tensor, kernel: int, stride: int, padding: int = 0) -> tuple[int, int]:
    """Rows and columns of the output, of an image (B, C, H, W, ...)."""
    height, width = ((n + 2 * padding - kernel) // stride + 1 for n in image.shape[2:4])
    return height, width


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
        """Arguments of `place_at` and `child_at`."""
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
    return u, Window(kernel, stride, *places(u, kernel, stride), u.stride()[:4])


def fold(g: Tensor, out: Tensor, window: Window, again: bool = False) -> None:
    """The gradient out (B, T, H, W, D) from that of patches g (B * H' * W', T * k * k, ...), added to what it holds
    if `again`.
    """
    from . import patches_triton as kernels

    b, t, h, w, d = out.shape
    tiles, constants = tile(t, d)
    launch(kernels.scatter, (b * h * w, tiles))(
        g, out, t, h, w, window.height, window.width, *out.stride(), int(again), KERNEL=window.kernel,
        STRIDE=window.stride, **constants,
    )  # fmt: skip


def _empty_patches(u, kernel, stride):
    b, t, _, _, d = u.shape
    return torch.empty(b, *places(u, kernel, stride), t * kernel * kernel, d, dtype=u.dtype, device=u.device)


@operator("gather_patches")
def gather_patches(u: Tensor, kernel: int, stride: int) -> Tensor:
    """(B, T, H, W, D) of any strides -> (B, H', W', T * k * k, D), contiguous."""
    from . import patches_triton as kernels

    out = _empty_patches(u, kernel, stride)
    b, oh, ow, rows, d = out.shape
    tiles, constants = tile(rows, d)
    launch(kernels.gather, (b * oh * ow, tiles))(
        u, out, u.shape[1], oh, ow, *u.stride(), KERNEL=kernel, STRIDE=stride, **constants
    )
    return out


def _empty_image(g, size, strides, kernel, stride):
    return torch.empty_strided(size, strides, dtype=g.dtype, device=g.device)


@operator("scatter_patches")
def scatter_patches(g: Tensor, size: list[int], strides: list[int], kernel: int, stride: int) -> Tensor:
    """The gradient of u, of this size and strides, from g (B, H', W', T * k * k, D)."""
    out = _empty_image(g, size, strides, kernel, stride)
    fold(g.contiguous(), out, Window(kernel, stride, *places(out, kernel, stride), ()))
    return out


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u, ctx.kernel, ctx.stride = inputs
    ctx.size, ctx.strides = u.shape, torch.empty_like(u, device="meta").stride()  # u's own, where it has no gaps


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return scatter_patches(g, ctx.size, ctx.strides, ctx.kernel, ctx.stride), None, None


gather_patches.register_fake(_empty_patches)
scatter_patches.register_fake(_empty_image)
gather_patches.register_autograd(_backward, setup_context=_keep)
