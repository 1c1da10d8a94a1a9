"""`attend` as a custom operator: autograd, torch.compile, graph capture and DDP see one call and its gradient.

Every output and gradient is bitwise reproducible on one device and shape: sums run in a fixed order, partial sums
are added up by one reduction, nothing is added atomically.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .launch import Step, added_up, sizes


def lse_shape(u: Tensor, query: Tensor | None, logits: Tensor | None) -> tuple[int, int]:
    """Uniform couplings need none."""
    return (0, 0) if query is None and logits is None else (u.shape[0], u.shape[1])


@torch.library.custom_op("flashcaps::attend", mutates_args=())
def attend(
    u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool, detach: bool
) -> tuple[Tensor, Tensor]:
    """s (B, J, D), and lse (B, G) or nothing.

    u (B, G, 1, C, d), weight (J, d, G, h), query (B, J, D), logits (G, J). detach: no gradient from the agreement
    to u and weight.
    """
    n = sizes(u, weight)
    lse = torch.empty(lse_shape(u, query, logits), dtype=torch.float32, device=u.device)
    if u.numel() == 0 or weight.numel() == 0:
        return u.new_zeros(n.b, n.j, n.c * n.h), lse.zero_()
    return added_up(Step(u, weight, query, logits, leaky).forward(lse), u.dtype), lse


@attend.register_fake
def _(u, weight, query, logits, leaky, detach):
    n = sizes(u, weight)
    lse = u.new_empty(lse_shape(u, query, logits), dtype=torch.float32)
    return u.new_empty(n.b, n.j, n.c * n.h), lse


@torch.library.custom_op("flashcaps::attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    query: Tensor | None,
    logits: Tensor | None,
    lse: Tensor,
    leaky: bool,
    detach: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gu, gW, gq, gl; what has no gradient comes back empty."""
    if u.numel() == 0 or weight.numel() == 0:
        inputs = (u, weight, u.new_empty(0) if query is None else query, lse.new_empty(0) if logits is None else logits)
        gu, gw, gq, gl = (torch.zeros_like(x) for x in inputs)
        return gu, gw, gq, gl
    step = Step(u, weight, query, logits, leaky, detach)
    into = step.gradients(u.dtype, alone=True)
    gq = step.backward(grad.to(u.dtype).contiguous(), lse, into, again=False)
    return into[0], added_up(into[1], weight.dtype), added_up(gq, u.dtype), added_up(into[2], torch.float32)


@attend_backward.register_fake
def _(grad, u, weight, query, logits, lse, leaky, detach):
    gq = u.new_empty(0) if query is None else u.new_empty(query.shape)
    gl = u.new_empty(0 if logits is None else logits.shape, dtype=torch.float32)
    return u.new_empty(u.shape), u.new_empty(weight.shape), gq, gl


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    u, weight, query, logits, ctx.leaky, ctx.detach = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(u, weight, query, logits, output[1])


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    u, weight, query, logits, lse = ctx.saved_tensors
    gu, gw, gq, gl = attend_backward(grad, u, weight, query, logits, lse, ctx.leaky, ctx.detach)
    return gu, gw, None if query is None else gq, None if logits is None else gl, None, None


attend.register_autograd(_backward, setup_context=_keep)
