"""LayerNorm and squash of poses: one kernel forward and one backward on a GPU, torch's operators elsewhere.

Both read poses in the layout a convolution left them in, and write the gradient back in it: nothing is copied. Sums
over rows (LayerNorm's scale and shift) are made in two stages of fixed order, so that gradients are reproducible.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...routing.math import squash
from .rows import LONGEST, PROGRAMS, fused, laid_out_like, rows_of, tiles_of, with_gradient


def pose_dtype(x: Tensor) -> torch.dtype:
    """What a pose is normalised to: fp32 under autocast, which routing computes in, else its own dtype."""
    return torch.float32 if not x.is_meta and torch.is_autocast_enabled(x.device.type) else x.dtype


def layer_norm_poses(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last axis of x (..., D), weight and bias (D,) or None."""
    if fused(x) and x.shape[-1] <= LONGEST:
        return norm_rows(x, weight, bias, eps, pose_dtype(x))
    x = x.to(pose_dtype(x))
    weight, bias = (None if y is None else y.to(x.dtype) for y in (weight, bias))
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def squash_poses(x: Tensor, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """squash(scale x + shift) over the last axis of x (..., D)."""
    if fused(x) and x.shape[-1] <= LONGEST:
        return squash_rows(x, scale, shift, pose_dtype(x))
    if (scale, shift) != (1.0, 0.0):
        x = x * scale + shift
    return squash(x.to(pose_dtype(x)))


@torch.library.custom_op("flashcaps::norm_rows", mutates_args=())
def norm_rows(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """LayerNorm of each row of x (..., D), contiguous, in `dtype`."""
    from . import norm_triton as kernels

    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    x, rows = rows_of(x)
    tiles = tiles_of(rows, x.shape[-1])
    kernels.layer_norm[(tiles.total,)](
        x, y if weight is None else weight.contiguous(), y if bias is None else bias.contiguous(), y, *rows.arguments,
        eps, D=x.shape[-1], WEIGHT=weight is not None, BIAS=bias is not None, **tiles.options,
    )  # fmt: skip
    return y


@norm_rows.register_fake
def _(x, weight, bias, eps, dtype):
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("flashcaps::norm_rows_backward", mutates_args=())
def norm_rows_backward(
    g: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """gx in the layout of x, gw and gb (D,) or empty."""
    from . import norm_triton as kernels

    d = x.shape[-1]
    y, rows, gx = with_gradient(x)
    tiles, sums = tiles_of(rows, d), weight is not None or bias is not None
    programs = min(tiles.total, PROGRAMS)
    parts = torch.empty(programs, 2, d, dtype=torch.float32, device=x.device) if sums else gx
    kernels.layer_norm_backward[(programs,)](
        y, y if weight is None else weight.contiguous(), g.contiguous(), gx, parts, tiles.total, *rows.arguments, eps,
        D=d, WEIGHT=weight is not None, SUMS=sums, **tiles.options,
    )  # fmt: skip
    both = parts.sum(0) if sums else (None, None)
    gw, gb = (x.new_empty(0) if p is None else s.to(p.dtype).clone() for p, s in zip((weight, bias), both, strict=True))
    return laid_out_like(x, gx), gw, gb


@norm_rows_backward.register_fake
def _(g, x, weight, bias, eps):
    gw, gb = (x.new_empty(0) if p is None else p.new_empty(p.shape) for p in (weight, bias))
    return torch.empty_like(x), gw, gb


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight, bias)


def _norm_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    gx, gw, gb = norm_rows_backward(g, x, weight, bias, ctx.eps)
    return gx, None if weight is None else gw, None if bias is None else gb, None, None


norm_rows.register_autograd(_norm_backward, setup_context=_keep_norm)


@torch.library.custom_op("flashcaps::squash_rows", mutates_args=())
def squash_rows(x: Tensor, scale: float, shift: float, dtype: torch.dtype) -> Tensor:
    """squash(scale x + shift) of each row of x (..., D), contiguous, in `dtype`."""
    from . import norm_triton as kernels

    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    x, rows = rows_of(x)
    tiles = tiles_of(rows, x.shape[-1])
    kernels.squash[(tiles.total,)](x, y, *rows.arguments, scale, shift, D=x.shape[-1], **tiles.options)
    return y


@squash_rows.register_fake
def _(x, scale, shift, dtype):
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("flashcaps::squash_rows_backward", mutates_args=())
def squash_rows_backward(g: Tensor, x: Tensor, scale: float, shift: float) -> Tensor:
    """gx in the layout of x."""
    from . import norm_triton as kernels

    y, rows, gx = with_gradient(x)
    tiles = tiles_of(rows, x.shape[-1])
    kernels.squash_backward[(tiles.total,)](
        y, g.contiguous(), gx, *rows.arguments, scale, shift, D=x.shape[-1], **tiles.options
    )
    return laid_out_like(x, gx)


@squash_rows_backward.register_fake
def _(g, x, scale, shift):
    return torch.empty_like(x)


def _keep_squash(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.scale, ctx.shift, _ = inputs
    ctx.save_for_backward(x)


def _squash_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return squash_rows_backward(g, *ctx.saved_tensors, ctx.scale, ctx.shift), None, None, None


squash_rows.register_autograd(_squash_backward, setup_context=_keep_squash)
