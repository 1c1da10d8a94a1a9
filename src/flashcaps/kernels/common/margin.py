"""The margin loss and its gradient in one kernel, instead of a dozen operators of microseconds each on a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .operators import operator
from .replay import launch
from .rows import TILE, empty_fp32, power_of_two

CLASSES = 1024  # at most, in a program's tile


def _empty(v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return empty_fp32(v), empty_fp32(v, *v.shape)


@operator("margin_rows")
def margin_rows(
    v: Tensor, targets: Tensor, present: float, absent: float, down_weight: float
) -> tuple[Tensor, Tensor]:
    """The loss of lengths v (B, K), and its gradient (B, K). targets: class indices (B,), or multi-hot (B, K)."""
    from . import rows_triton as kernels

    (b, k), kp = v.shape, power_of_two(v.shape[1])
    loss, gradient = _empty(v)
    launch(kernels.margin, (1,))(
        v, targets.contiguous(), loss, gradient, b, *v.stride(), present, absent, down_weight,
        K=k, KP=kp, ROWS=max(min(TILE // kp, power_of_two(b)), 1), INDEX=targets.ndim == 1, num_warps=4,
    )  # fmt: skip
    return loss, gradient


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.dtype = inputs[0].dtype
    ctx.set_materialize_grads(False)  # nobody asks for the gradient's own, which would be filled with zeros
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, g: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return None if g is None else (g * ctx.saved_tensors[0]).to(ctx.dtype), None, None, None, None


margin_rows.register_fake(_empty)
margin_rows.register_autograd(_backward, setup_context=_keep)
