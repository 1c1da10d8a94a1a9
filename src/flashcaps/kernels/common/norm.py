"""LayerNorm and squash of poses: one kernel forward and one backward on a GPU, torch's operators elsewhere.

Both read poses in the layout a convolution left them in, and write the gradient back in it: nothing is copied. Sums
over rows (LayerNorm's scale and shift) are made in two stages of fixed order, so that gradients are reproducible.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...routing.math import squash
from .operators import empty_gradients, gradient_of, operator
from .replay import launch
from .rows import LONGEST, PROGRAMS, empty_fp32, fused, laid_out_like, rows_of, with_gradient


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


@operator("norm_rows")
def norm_rows(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """LayerNorm of each row of x (..., D), contiguous, in `dtype`."""
    from . import rows_triton as kernels

    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    x, rows = rows_of(x)
    tiles, constants = rows.tile(x.shape[-1])
    launch(kernels.layer_norm, (tiles,))(
        x, y if weight is None else weight.contiguous(), y if bias is None else bias.contiguous(), y, *rows.arguments,
        eps, WEIGHT=weight is not None, BIAS=bias is not None, **constants,
    )  # fmt: skip
    return y


def _fake_gradients(grad, given, *_):
    return [torch.empty_like(given[0]), *empty_gradients(grad, given[1:])]


norm_rows.register_fake(lambda x, weight, bias, eps, dtype: x.new_empty(x.shape, dtype=dtype))


@gradient_of(norm_rows, tensors=3, fake=_fake_gradients)
def norm_rows_backward(
    grad: Tensor, given: list[Tensor | None], kept: list[Tensor], eps: float, dtype: torch.dtype
) -> list[Tensor | None]:
    """gx in the layout of x, gw and gb (D,)."""
    from . import rows_triton as kernels

    x, weight, bias = given
    assert x is not None
    y, rows, gx = with_gradient(x)
    (tiles, constants), sums = rows.tile(x.shape[-1]), weight is not None or bias is not None
    programs = min(tiles, PROGRAMS)
    parts = empty_fp32(x, programs, 2, x.shape[-1]) if sums else gx
    launch(kernels.layer_norm_backward, (programs,))(
        y, y if weight is None else weight.contiguous(), grad.contiguous(), gx, parts, tiles, *rows.arguments, eps,
        WEIGHT=weight is not None, SUMS=sums, **constants,
    )  # fmt: skip
    both = parts.sum(0) if sums else (None, None)
    of_both = (None if p is None else s.to(p.dtype).clone() for p, s in zip((weight, bias), both, strict=True))
    return [laid_out_like(x, gx), *of_both]


@operator("squash_rows")
def squash_rows(x: Tensor, scale: float, shift: float, dtype: torch.dtype) -> Tensor:
    """squash(scale x + shift) of each row of x (..., D), contiguous, in `dtype`."""
    from . import rows_triton as kernels

    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    x, rows = rows_of(x)
    tiles, constants = rows.tile(x.shape[-1])
    launch(kernels.squash, (tiles,))(x, y, *rows.arguments, scale, shift, **constants)
    return y


squash_rows.register_fake(lambda x, scale, shift, dtype: x.new_empty(x.shape, dtype=dtype))


@gradient_of(squash_rows, tensors=1, fake=_fake_gradients)
def squash_rows_backward(
    grad: Tensor, given: list[Tensor], kept: list[Tensor], scale: float, shift: float, dtype: torch.dtype
) -> list[Tensor]:
    """gx in the layout of x."""
    from . import rows_triton as kernels

    x, rows, gx = with_gradient(given[0])
    tiles, constants = rows.tile(x.shape[-1])
    launch(kernels.squash_backward, (tiles,))(x, grad.contiguous(), gx, *rows.arguments, scale, shift, **constants)
    return [laid_out_like(given[0], gx)]
