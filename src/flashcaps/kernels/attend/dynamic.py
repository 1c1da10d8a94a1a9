r"""All iterations of dynamic routing as one custom operator.

    q_t = v_1 + ... + v_(t-1),   s_t = attend(q_t) + bias,   v_t = squash(s_t)

Gradients of poses and weights of all iterations are added up where they are made, and each squash is one kernel with
the sums around it: little else than `attend` itself is left. Saved for the backward pass: poses, weights, and per
iteration s, q (B, J, D) and one log-sum-exp per child. Outputs and gradients are bitwise reproducible.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import plan as plan
from .launch import Step, added_up, empty, of_step, sizes


def _rows(x: Tensor, chunks: int) -> tuple[tuple[int], dict[str, int]]:
    """Grid and constants of a kernel over the rows (b, j) of x (B, J, D), summed from so many chunks."""
    d = x.shape[-1]
    dp = plan.power_of_two(d)
    rt = max(64 // dp, 1)
    ct = min(plan.power_of_two(chunks), max(4096 // (rt * dp), 1))
    return (plan.ceil_div(x.shape[0] * x.shape[1], rt),), {"D": d, "DP": dp, "RT": rt, "CT": ct, "num_warps": 4}


def _coupled(iterations: int, logits: Tensor | None) -> int:
    """Iterations whose couplings differ: the first has neither a query nor, mostly, logits."""
    return iterations - (logits is None)


@torch.library.custom_op("flashcaps::route_dynamic", mutates_args=())
def route_dynamic(
    u: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor | None, leaky: bool, iterations: int, detach: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v (B, J, D) of the last iteration; s (T, B, J, D), q (T - 1, B, J, D) and lse (T or T - 1, B, G) of all."""
    from . import squash as kernels

    n = sizes(u, weight)
    s = empty(u, iterations, n.b, n.j, n.c * n.h)
    q = torch.empty((iterations - 1, *s.shape[1:]), dtype=u.dtype, device=u.device)  # the first iteration has none
    lse = empty(u, _coupled(iterations, logits), n.b, n.g)
    if s.numel() == 0:
        return u.new_zeros(s.shape[1:]), s, q, lse
    v = torch.empty(s.shape[1:], dtype=u.dtype, device=u.device)
    for t in range(iterations):
        last = t == iterations - 1
        parts = Step(u, weight, q[t - 1] if t else None, logits, leaky).forward(of_step(lse, t, iterations))
        grid, constants = _rows(v, parts.shape[0])
        kernels.settle[grid](
            parts, u if bias is None else bias.contiguous(), q[t - 1] if t else v, s[t], v, v if last else q[t],
            parts.shape[0], n.b * n.j, n.j, BIAS=bias is not None, SEEN=t > 0, LAST=last, **constants,
        )  # fmt: skip
        del parts  # before the next
    return v, s, q, lse


@route_dynamic.register_fake
def _(u, weight, bias, logits, leaky, iterations, detach):
    n = sizes(u, weight)
    shape = (iterations, n.b, n.j, n.c * n.h)
    lse = u.new_empty((_coupled(iterations, logits), n.b, n.g), dtype=torch.float32)
    s, q = u.new_empty(shape, dtype=torch.float32), u.new_empty((iterations - 1, *shape[1:]))
    return u.new_empty(shape[1:]), s, q, lse


@torch.library.custom_op("flashcaps::route_dynamic_backward", mutates_args=())
def route_dynamic_backward(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    logits: Tensor | None,
    kept: list[Tensor],
    leaky: bool,
    detach: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gu, gW, gbias and gl; what has no gradient comes back empty."""
    from . import squash as kernels

    s, q, lse = kept
    if s.numel() == 0:
        gu, gw, gbias, gl = (torch.zeros_like(empty(u, 0) if x is None else x) for x in (u, weight, bias, logits))
        return gu, gw, gbias, gl
    n, last = sizes(u, weight), s.shape[0] - 1
    into = Step(u, weight, None, logits, leaky).gradients(torch.float32)
    kept_gs = 1 if bias is None else last + 1  # the bias has their sum
    total, gs = empty(u, *s.shape[1:]), torch.empty((kept_gs, *s.shape[1:]), dtype=u.dtype, device=u.device)
    gq, first = grad, last if detach else 0
    for t in range(last, first - 1, -1):
        grid, constants = _rows(total, gq.shape[0] if t < last else 1)
        kernels.unsettle[grid](
            grad.contiguous(), gq, s[t], total, gs[t % kept_gs], gq.shape[0], n.b * n.j, LATER=min(last - t, 2),
            **constants,
        )  # fmt: skip
        del gq  # before the next
        step = Step(u, weight, q[t - 1] if t else None, logits, leaky, detach)
        gq = step.backward(gs[t % kept_gs], of_step(lse, t, last + 1), into, again=t < last)
    del gq
    gu, gw, gl = into
    gbias = empty(gs, 0) if bias is None else gs[first:].sum((0, 1), dtype=torch.float32)
    return gu.to(u.dtype), added_up(gw, weight.dtype), gbias, added_up(gl, torch.float32)


@route_dynamic_backward.register_fake
def _(grad, u, weight, bias, logits, kept, leaky, detach):
    gbias, gl = (u.new_empty(0 if x is None else x.shape, dtype=torch.float32) for x in (bias, logits))
    return u.new_empty(u.shape), u.new_empty(weight.shape), gbias, gl


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, bias, logits, ctx.leaky, _, ctx.detach = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(u, weight, bias, logits, *output[1:])


def _backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 7
    u, weight, bias, logits, *kept = ctx.saved_tensors
    gu, gw, gbias, gl = route_dynamic_backward(grad, u, weight, bias, logits, kept, ctx.leaky, ctx.detach)
    return gu, gw, None if bias is None else gbias, None if logits is None else gl, None, None, None


route_dynamic.register_autograd(_backward, setup_context=_keep)
