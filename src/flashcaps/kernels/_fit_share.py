r"""How a child of a convolutional layer is shared out among the places that see it: a softmax over positions.

    q = exp(Z) / sum of exp(Z) over the rows of parents that see the child,   dL/dZ = q (g - sum of q g over them)

A program takes one place of the input and gathers what belongs to it, so nothing is scattered and the sums have one
order. Z, q (B H' W', T k k): a row for each place of the output, in it a child for each type and kernel offset.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..routing._math import Grid

LOWEST = tl.constexpr(-3.0e38)  # not -inf: a difference of two would be NaN


@triton.jit
def _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL: tl.constexpr, STRIDE: tl.constexpr):
    """Where the child of place (y, x) lies under offset (ky, kx) of an output, and whether there is such an output."""
    oy, ox = y - ky, x - kx
    there = (oy >= 0) & (ox >= 0) & (oy % STRIDE == 0) & (ox % STRIDE == 0)
    oy, ox = oy // STRIDE, ox // STRIDE
    row = (b * OH + oy) * OW + ox
    return (row * T + t) * (KERNEL * KERNEL) + ky * KERNEL + kx, there & (oy < OH) & (ox < OW) & (t < T)


@triton.jit
def _share(z, q, T, H, W, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    b, y, x = (place // (H * W)).to(tl.int64), place // W % H, place % W
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            top = tl.maximum(top, tl.load(z + at, mask=there, other=LOWEST))
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            total += tl.where(there, tl.exp(tl.load(z + at, mask=there, other=LOWEST) - top), 0.0)
    scale = 1 / tl.where(total > 0, total, 1.0)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            tl.store(q + at, tl.exp(tl.load(z + at, mask=there, other=LOWEST) - top) * scale, mask=there)


@triton.jit
def _share_backward(q, g, out, T, H, W, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    b, y, x = (place // (H * W)).to(tl.int64), place // W % H, place % W
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            total += tl.load(q + at, mask=there, other=0.0) * tl.load(g + at, mask=there, other=0.0)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            own = tl.load(q + at, mask=there, other=0.0)
            tl.store(out + at, own * (tl.load(g + at, mask=there, other=0.0) - total), mask=there)


def _launch(kernel: Any, inputs: tuple[Tensor, ...], grid: list[int]) -> Tensor:
    """The result of a kernel over the places of the input, of the shape of its inputs (B H' W', T k k)."""
    h, w, k, stride = grid
    oh, ow = (h - k) // stride + 1, (w - k) // stride + 1
    n, i = inputs[0].shape
    t, out = i // (k * k), torch.empty_like(inputs[0])
    block = min(triton.next_power_of_2(t), 32)
    kernel[(n // (oh * ow) * h * w, triton.cdiv(t, block))](
        *inputs, out, t, h, w, oh, ow, KERNEL=k, STRIDE=stride, BLOCK=block, num_warps=1
    )
    return out


@torch.library.custom_op("flashcaps::share", mutates_args=())
def share_of(z: Tensor, grid: list[int]) -> Tensor:
    """q from Z, (B H' W', T k k). grid: height and width of the input, kernel, stride."""
    return _launch(_share, (z.contiguous(),), grid)


@share_of.register_fake
def _(z, grid):
    return torch.empty_like(z, memory_format=torch.contiguous_format)


@torch.library.custom_op("flashcaps::share_backward", mutates_args=())
def share_gradient(share: Tensor, g: Tensor, grid: list[int]) -> Tensor:
    """dL/dZ from q and dL/dq."""
    return _launch(_share_backward, (share, g.contiguous()), grid)


@share_gradient.register_fake
def _(share, g, grid):
    return torch.empty_like(share)


def _keep(ctx: Any, inputs: tuple[Tensor, list[int]], output: Tensor) -> None:
    ctx.grid = inputs[1]
    ctx.save_for_backward(output)


def _differentiate(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
    return share_gradient(*ctx.saved_tensors, g, ctx.grid), None


share_of.register_autograd(_differentiate, setup_context=_keep)


def listed(grid: Grid | None) -> list[int]:
    """As operators take it: empty, where couplings are normalised over parents alone."""
    return [] if grid is None else list(grid)
