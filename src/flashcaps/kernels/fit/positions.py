r"""Normalisation over types and positions: the share of a child that each place of the output gets.

    r_ij = exp(a_ij - Z_i) q_i,   q = exp(Z) / sum of exp(Z) over the places that see the child
    dL/dZ = q (g - sum of q g over them),   g = gate dL/d(gate q)

so a softmax over parents and positions (`routing.math.OverPositions`, the reference) is one over parents times q, and
kernels that know parents alone are given gate q as their gate.

A program takes one place of the input and gathers what belongs to it, so nothing is scattered and the sums have one
order. Z, q (B H' W', T k k): a row for each place of the output, in it a child for each type and kernel offset. Bytes:
Z and the gate are read, the product is written, once each, but for what overlapping kernels read from the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.replay import launch
from .forward_kernels import LOWEST


@triton.jit
def _entry(b, y, x, t, OH, OW, T, k: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr):
    """Where the child at place (y, x) lies under offset k of a kernel, and whether an output sees it so."""
    oy, ox = y - k // KERNEL, x - k % KERNEL
    there = (oy >= 0) & (ox >= 0) & (oy % STRIDE == 0) & (ox % STRIDE == 0)
    oy, ox = oy // STRIDE, ox // STRIDE
    row = (b * OH + oy) * OW + ox
    return (row * T + t) * (KERNEL * KERNEL) + k, there & (oy < OH) & (ox < OW) & (t < T)


@triton.jit
def _logit(z, at, there, known):
    """Z, or 0 where it is not known; LOWEST where there is no such output."""
    return tl.where(there, tl.load(z + at, mask=there & known, other=0.0), LOWEST)


@triton.jit
def _normal(z, known, b, y, x, t, T, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The largest Z of a child, and 1 / sum of exp(Z - that)."""
    top = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for k in tl.static_range(KERNEL * KERNEL):
        at, there = _entry(b, y, x, t, OH, OW, T, k, KERNEL, STRIDE)
        top = tl.maximum(top, _logit(z, at, there, known))
    for k in tl.static_range(KERNEL * KERNEL):
        at, there = _entry(b, y, x, t, OH, OW, T, k, KERNEL, STRIDE)
        total += tl.where(there, tl.exp(_logit(z, at, there, known) - top), 0.0)
    return top, 1 / tl.where(total > 0, total, 1.0)


@triton.jit
def _child(place, block, H, W, BLOCK: tl.constexpr):
    """The children of a program: example, place of the input, types."""
    return (place // (H * W)).to(tl.int64), place // W % H, place % W, block * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _share(
    first, factor, out, later, stride, T, H, W, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, FLAT: tl.constexpr,
    AGAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """q times a factor, of an iteration n on the grid's last axis; AGAIN: added to what is there.

    Its Z is `first` or, FLAT, not known, and of those after it later[n - 1], `stride` elements apart.
    """
    b, y, x, t = _child(tl.program_id(0), tl.program_id(1), H, W, BLOCK)
    n = tl.program_id(2).to(tl.int64)
    z = first
    if n > 0:
        z = later + (n - 1) * stride
    out += n * (tl.num_programs(0) // (H * W) * OH * OW) * (T * KERNEL * KERNEL)
    known = n >= (1 if FLAT else 0)
    top, scale = _normal(z, known, b, y, x, t, T, OH, OW, KERNEL, STRIDE, BLOCK)
    for k in tl.static_range(KERNEL * KERNEL):
        at, there = _entry(b, y, x, t, OH, OW, T, k, KERNEL, STRIDE)
        own = tl.exp(_logit(z, at, there, known) - top) * scale
        own *= tl.load(factor + at, mask=there, other=0.0)
        if AGAIN:
            own += tl.load(out + at, mask=there, other=0.0)
        tl.store(out + at, own, mask=there)


@triton.jit
def _normaliser_gradient(
    z, gate, s, out, g_gate, T, H, W, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, GATE: tl.constexpr,
    AGAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dL/dZ from Z, the gate and s = dL/d(gate q); GATE: dL/dgate = q s too; AGAIN: added to what is there."""
    b, y, x, t = _child(tl.program_id(0), tl.program_id(1), H, W, BLOCK)
    top, scale = _normal(z, True, b, y, x, t, T, OH, OW, KERNEL, STRIDE, BLOCK)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for k in tl.static_range(KERNEL * KERNEL):
        at, there = _entry(b, y, x, t, OH, OW, T, k, KERNEL, STRIDE)
        q = tl.exp(_logit(z, at, there, True) - top) * scale
        g = tl.load(gate + at, mask=there, other=0.0) * tl.load(s + at, mask=there, other=0.0)
        total += tl.where(there, q * g, 0.0)
    for k in tl.static_range(KERNEL * KERNEL):
        at, there = _entry(b, y, x, t, OH, OW, T, k, KERNEL, STRIDE)
        q = tl.exp(_logit(z, at, there, True) - top) * scale
        own = tl.load(s + at, mask=there, other=0.0)
        tl.store(out + at, q * (tl.load(gate + at, mask=there, other=0.0) * own - total), mask=there)
        if GATE:
            own *= q
            if AGAIN:
                own += tl.load(g_gate + at, mask=there, other=0.0)
            tl.store(g_gate + at, own, mask=there)


def _launch(kernel: Any, tensors: tuple[Any, ...], grid: list[int], iterations: int = 1, **options: bool) -> None:
    """Runs a kernel over the places of the input; tensors, of which the second is (B H' W', T k k), and numbers."""
    h, w, k, stride = grid
    oh, ow = (h - k) // stride + 1, (w - k) // stride + 1
    n, i = tensors[1].shape
    t = i // (k * k)
    block = min(triton.next_power_of_2(t), 32)
    launch(kernel, (n // (oh * ow) * h * w, triton.cdiv(t, block), iterations))(
        *tensors, t, h, w, oh, ow, KERNEL=k, STRIDE=stride, BLOCK=block, **options, num_warps=1
    )


def share_gate(gate: Tensor, z: Tensor | None, grid: list[int], total: Tensor | None = None) -> Tensor:
    """gate q, added to `total` if there is one; z None: equal shares. Without a grid it is the gate itself.

    grid: height and width of the input, kernel and stride; empty where couplings are normalised over parents alone.
    """
    if not grid:
        return gate
    out = torch.empty_like(gate) if total is None else total
    given = (gate if z is None else z, gate, out, gate, 0)
    _launch(_share, given, grid, FLAT=z is None, AGAIN=total is not None)
    return out


def share_gates(gate: Tensor, first_z: Tensor | None, normalisers: Tensor, grid: list[int]) -> Tensor:
    """gate q of all T iterations, (T, B, I), from the Z that each began with: first_z, then normalisers (T - 1, B, I).

    Without a grid it is the gate, T times."""
    n = len(normalisers) + 1
    if not grid:
        return gate.expand(n, -1, -1)
    out = torch.empty(n, *gate.shape, device=gate.device)
    given = (gate if first_z is None else first_z, gate, out, normalisers, normalisers.stride(0))
    _launch(_share, given, grid, iterations=n, FLAT=first_z is None, AGAIN=False)
    return out


def normaliser_gradient(
    z: Tensor, gate: Tensor, s: Tensor, grid: list[int], gated: bool, total: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """dL/dZ, where s is dL/d(gate q); and, if `gated`, the gate's gradient q s, added to `total`."""
    out = torch.empty_like(z)
    g_gate = total if total is not None or not gated else torch.empty_like(z)
    tensors = (z, gate, s, out, out if g_gate is None else g_gate)
    _launch(_normaliser_gradient, tensors, grid, GATE=gated, AGAIN=total is not None)
    return out, g_gate
