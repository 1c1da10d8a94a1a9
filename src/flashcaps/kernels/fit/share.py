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

from ...routing.math import Grid

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
def _logit(z, at, there, FLAT: tl.constexpr):
    """Z, FLAT: 0; lowest where there is no such output."""
    if FLAT:
        a = tl.where(there, 0.0, LOWEST)
    else:
        a = tl.load(z + at, mask=there, other=LOWEST)
    return a


@triton.jit
def _normal(
    z, b, y, x, t, T, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest Z of a child, and 1 / sum of exp(Z) less it."""
    top = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            top = tl.maximum(top, _logit(z, at, there, FLAT))
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            total += tl.where(there, tl.exp(_logit(z, at, there, FLAT) - top), 0.0)
    return top, 1 / tl.where(total > 0, total, 1.0)


@triton.jit
def _share(
    z, factor, q, T, H, W, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, FLAT: tl.constexpr,
    FACTOR: tl.constexpr, AGAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """q, or with a FACTOR the product of both, AGAIN: added to what is there."""
    place = tl.program_id(0)
    b, y, x = (place // (H * W)).to(tl.int64), place // W % H, place % W
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top, scale = _normal(z, b, y, x, t, T, OH, OW, KERNEL, STRIDE, FLAT, BLOCK)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            own = tl.exp(_logit(z, at, there, FLAT) - top) * scale
            if FACTOR:
                own *= tl.load(factor + at, mask=there, other=0.0)
            if AGAIN:
                own += tl.load(q + at, mask=there, other=0.0)
            tl.store(q + at, own, mask=there)


@triton.jit
def _logit_gradient(
    z, gate, s, out, g_gate, T, H, W, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, GATE: tl.constexpr,
    AGAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dL/dZ from Z, the gate and dL/d(gate q) = s; GATE: dL/dgate = q s too, AGAIN: added to what is there."""
    place = tl.program_id(0)
    b, y, x = (place // (H * W)).to(tl.int64), place // W % H, place % W
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top, scale = _normal(z, b, y, x, t, T, OH, OW, KERNEL, STRIDE, False, BLOCK)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            q = tl.exp(_logit(z, at, there, False) - top) * scale
            g = tl.load(gate + at, mask=there, other=0.0) * tl.load(s + at, mask=there, other=0.0)
            total += tl.where(there, q * g, 0.0)
    for ky in tl.static_range(KERNEL):
        for kx in tl.static_range(KERNEL):
            at, there = _entry(b, y, x, t, OH, OW, T, ky, kx, KERNEL, STRIDE)
            q = tl.exp(_logit(z, at, there, False) - top) * scale
            own = tl.load(s + at, mask=there, other=0.0)
            tl.store(out + at, q * (tl.load(gate + at, mask=there, other=0.0) * own - total), mask=there)
            if GATE:
                own *= q
                if AGAIN:
                    own += tl.load(g_gate + at, mask=there, other=0.0)
                tl.store(g_gate + at, own, mask=there)


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


def _launch(kernel: Any, tensors: tuple[Tensor, ...], grid: list[int], **options: bool) -> None:
    """A kernel over the places of the input; tensors (B H' W', T k k)."""
    h, w, k, stride = grid
    oh, ow = (h - k) // stride + 1, (w - k) // stride + 1
    n, i = tensors[0].shape
    t = i // (k * k)
    block = min(triton.next_power_of_2(t), 32)
    kernel[(n // (oh * ow) * h * w, triton.cdiv(t, block))](
        *tensors, t, h, w, oh, ow, KERNEL=k, STRIDE=stride, BLOCK=block, **options, num_warps=1
    )


def shared(x: Tensor, z: Tensor | None, grid: list[int], total: Tensor | None = None) -> Tensor:
    """q x, added to `total` if there is one. z None: all children have the same."""
    out = torch.empty_like(x) if total is None else total
    flat, again = z is None, total is not None
    _launch(_share, (x if z is None else z, x, out), grid, FLAT=flat, FACTOR=True, AGAIN=again)
    return out


def logit_gradient(
    z: Tensor, gate: Tensor, s: Tensor, grid: list[int], gated: bool, total: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """dL/dZ, where s is dL/d(gate q); and, gated, q s added to `total`."""
    out = torch.empty_like(z)
    g_gate = total if total is not None or not gated else torch.empty_like(z)
    tensors = (z, gate, s, out, out if g_gate is None else g_gate)
    _launch(_logit_gradient, tensors, grid, GATE=gated, AGAIN=total is not None)
    return out, g_gate


@torch.library.custom_op("flashcaps::share", mutates_args=())
def share_of(z: Tensor, grid: list[int]) -> Tensor:
    """q from Z, (B H' W', T k k). grid: height and width of the input, kernel, stride."""
    z, out = z.contiguous(), torch.empty_like(z, memory_format=torch.contiguous_format)
    _launch(_share, (z, z, out), grid, FLAT=False, FACTOR=False, AGAIN=False)
    return out


@share_of.register_fake
def _(z, grid):
    return torch.empty_like(z, memory_format=torch.contiguous_format)


@torch.library.custom_op("flashcaps::share_backward", mutates_args=())
def share_gradient(share: Tensor, g: Tensor, grid: list[int]) -> Tensor:
    """dL/dZ from q and dL/dq."""
    out = torch.empty_like(share)
    _launch(_share_backward, (share, g.contiguous(), out), grid)
    return out


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
