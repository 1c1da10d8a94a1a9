r"""All iterations of inverted dot-product attention as one custom operator.

    q_t = scale p_(t-1),   s_t = attend(q_t),   p_t = LayerNorm(s_t)

Gradients of poses and weights of all iterations are added up where they are made. Saved for the backward pass: poses,
weights, and per iteration s (B, J, D) and one log-sum-exp per child; q is made again from s. A convolutional layer's
children stay in its image: B is then examples x places, and no patch is formed but its gradient, a few examples at a
time. Outputs and gradients are bitwise reproducible.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..common.rows import PROGRAMS
from . import plan as plan
from .launch import Step, added_up, empty, of_step, sizes

EPS = 1e-5  # LayerNorm's


class Rows:
    """Kernels over the rows (b, j) of poses (B, J, D), and what they share."""

    def __init__(self, s: Tensor, gamma: Tensor | None, beta: Tensor | None) -> None:
        self.rows, self.d, self.norm = s[0, ..., 0].numel(), s.shape[-1], gamma is not None
        self.gamma, self.beta = (s if x is None else x.contiguous() for x in (gamma, beta))  # any stands for none

    def _tile(self, chunks: int) -> tuple[int, dict[str, Any]]:
        """Tiles of rows, and their constants: few rows where there are many chunks or few rows at all."""
        dp = plan.power_of_two(self.d)
        least = max(64 // dp, 1)
        rt = max(min(plan.power_of_two(self.rows // PROGRAMS), 2048 // (dp * plan.power_of_two(chunks))), least)
        ct = min(plan.power_of_two(chunks), max(4096 // (rt * dp), 1))
        constants = {"D": self.d, "DP": dp, "RT": rt, "CT": ct, "NORM": self.norm, "num_warps": 4}
        return plan.ceil_div(self.rows, rt), constants

    def finish(self, parts: Tensor, out: Tensor, scale: float, s: Tensor | None = None) -> None:
        """scale LayerNorm(s), s the sum of parts (chunks, B, J, D), which is kept in `s` if given."""
        from . import norm as kernels

        tiles, constants = self._tile(parts.shape[0])
        kernels.finish[(tiles,)](
            parts, self.gamma, self.beta, out if s is None else s, out, parts.shape[0], self.rows, scale, EPS,
            STORE=s is not None, **constants,
        )  # fmt: skip

    def unfinish(self, parts: Tensor, s: Tensor, gs: Tensor, scale: float) -> Tensor:
        """gs, and partial gradients of LayerNorm's scale and shift (programs, 2, D)."""
        from . import norm as kernels

        tiles, constants = self._tile(parts.shape[0])
        programs = min(tiles, PROGRAMS)
        sums = empty(s, programs if self.norm else 0, 2, self.d)
        kernels.unfinish[(programs,)](
            parts, self.gamma, s, gs, sums, parts.shape[0], self.rows, tiles, scale, EPS, **constants
        )
        return sums


@torch.library.custom_op("flashcaps::route_attention", mutates_args=())
def route_attention(
    u: Tensor,
    weight: Tensor,
    pose: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    window: list[int],
    scale: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """p (B, J, D) of the last iteration; s (T, B, J, D) and lse (T or T - 1, B, G) of all.

    u (B, G, 1, C, d), or with a window (C, kernel, stride) an image (B, T, H, W, D). pose: the parents' so far.
    gamma, beta (D,): LayerNorm's scale and shift, None: no LayerNorm.
    """
    n = sizes(u, weight, window)
    s = empty(u, iterations, n.b, n.j, n.c * n.h)
    lse = empty(u, iterations - (pose is None), n.b, n.g)
    p = torch.empty(s.shape[1:], dtype=u.dtype, device=u.device)
    if s.numel() == 0:
        return p, s, lse
    rows, query = Rows(s, gamma, beta), _first_query(pose, scale, u)
    for t in range(iterations):
        last, here = t == iterations - 1, s[t : t + 1]
        parts = _step(u, weight, query, window, pose).forward(of_step(lse, t, iterations), here)
        if query is None and not last:
            query = torch.empty_like(p)
        out = p if last or query is None else query
        rows.finish(parts, out, 1.0 if last else scale, None if parts is here else here)
        del parts  # before the next
    return p, s, lse


def _step(u: Tensor, weight: Tensor, query: Tensor | None, window: list[int], pose: Tensor | None) -> Step:
    step = Step(u, weight, query, None, window=window)
    step.n = step.n._replace(pose=0 if pose is None else pose.numel())
    return step


def _first_query(pose: Tensor | None, scale: float, u: Tensor) -> Tensor | None:
    return None if pose is None else (scale * pose.to(u.dtype)).contiguous()


@route_attention.register_fake
def _(u, weight, pose, gamma, beta, window, scale, iterations):
    n = sizes(u, weight, window)
    s = u.new_empty((iterations, n.b, n.j, n.c * n.h), dtype=torch.float32)
    lse = u.new_empty((iterations - (pose is None), n.b, n.g), dtype=torch.float32)
    return u.new_empty(s.shape[1:]), s, lse


@torch.library.custom_op("flashcaps::route_attention_backward", mutates_args=())
def route_attention_backward(
    grad: Tensor, u: Tensor, weight: Tensor, pose: Tensor | None, kept: list[Tensor], window: list[int], scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gu, gW, gpose or nothing, and LayerNorm's (2, D) or nothing. kept: s, lse, then gamma and beta if there are."""
    s, lse, *norm = kept
    if s.numel() == 0:
        nothing = empty(u, 0)
        gnorm = torch.zeros(2, s.shape[-1], device=u.device) if norm else nothing
        gpose = nothing if pose is None else pose.new_zeros(pose.shape)
        return torch.zeros_like(u), torch.zeros_like(weight), gpose, gnorm
    gamma, beta = norm if norm else (None, None)
    rows, last = Rows(s, gamma, beta), s.shape[0] - 1
    gs, gq = torch.empty(s.shape[1:], dtype=u.dtype, device=u.device), grad.contiguous()[None]
    query = None if last == 0 and pose is None else torch.empty_like(gs)
    into, sums = None, []
    for t in range(last, -1, -1):
        sums.append(rows.unfinish(gq, s[t], gs, 1.0 if t == last else scale))
        del gq  # before the next
        if t > 0:
            assert query is not None
            rows.finish(s[t - 1 : t], query, scale)
        else:
            query = _first_query(pose, scale, u)
        step = _step(u, weight, query, window, pose)
        into = step.gradients(torch.float32 if last else u.dtype, alone=last == 0) if into is None else into
        gq = step.backward(gs, of_step(lse, t, last + 1), into, again=t < last)
    assert into is not None
    gpose = empty(u, 0) if pose is None else added_up(gq, pose.dtype) * scale
    del gq
    gnorm = torch.cat(sums).sum(0) if norm else empty(u, 0)
    return into[0].to(u.dtype), added_up(into[1], weight.dtype), gpose, gnorm


@route_attention_backward.register_fake
def _(grad, u, weight, pose, kept, window, scale):
    gu = torch.empty_like(u) if window else u.new_empty(u.shape)
    gnorm = u.new_empty((2, kept[0].shape[-1]) if len(kept) > 2 else 0, dtype=torch.float32)
    gpose = u.new_empty(0, dtype=torch.float32) if pose is None else pose.new_empty(pose.shape)
    return gu, u.new_empty(weight.shape), gpose, gnorm


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, pose, gamma, beta, ctx.window, ctx.scale, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(u, weight, pose, gamma, beta, *output[1:])


def _backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    u, weight, pose, gamma, beta, *kept = ctx.saved_tensors
    kept += [] if gamma is None else [gamma, beta]
    gu, gw, gpose, gnorm = route_attention_backward(grad, u, weight, pose, kept, ctx.window, ctx.scale)
    of_norm = (None, None) if gamma is None else (gnorm[0].to(gamma.dtype), gnorm[1].to(beta.dtype))
    return gu, gw, None if pose is None else gpose, *of_norm, None, None, None


route_attention.register_autograd(_backward, setup_context=_keep)
