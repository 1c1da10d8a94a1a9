r"""`Attend` on a CUDA device, as custom operators: autograd, torch.compile, graph capture and DDP see one call each.

    attend            one step        a_ij = l_ij + v_ij . q_j,   c_ij = softmax_j(a_ij),   s_j = sum_i c_ij v_ij
    route_dynamic     all iterations  q_t = v_1 + ... + v_(t-1),  s_t = attend(q_t) + bias,  v_t = squash(s_t)
    route_attention   all iterations  q_t = scale p_(t-1),        s_t = attend(q_t),         p_t = LayerNorm(s_t)

No vote and no coupling is stored; of wide poses votes are formed a block of children at a time (`attend.wide`). Saved
for the backward pass: poses, weights, logits, and per iteration s (B, J, D), one log-sum-exp per child and dynamic's q.
Gradients of poses and weights of all iterations are added up where they are made. Attention's children may stay in a
layer's image: B is then examples x places, and no patch is formed but its gradient, a few examples at a time.

Every output and gradient is bitwise reproducible on one device and shape: sums run in a fixed order, partial sums are
added up by one reduction, nothing is added atomically.
"""

from __future__ import annotations

import os
from typing import cast

import torch
from torch import Tensor

from ...routing.math import Softmax, over_parents
from ..common.formed import takes
from ..common.operators import empty_gradients, gradient_of, operator
from ..common.rows import DTYPES, HAS_TRITON, Parts, carve, empty_fp32, memory_for
from ..votes import Votes, Windows
from . import plan
from .cpu import Options
from .launch import Finish, Launch, finish_alone
from .matrix import coupling, uniform

Given = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def supported(votes: Votes | Windows, softmax: Softmax = over_parents) -> str | None:
    """None if `TritonAttend`, or `attention_poses` on windows, can take these votes, else the reason why not."""
    u, weight, *window = votes
    if not HAS_TRITON:
        return "Triton is not installed"
    if u.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"votes on {u.device}; the kernel runs on CUDA devices"
    if u.dtype not in DTYPES or weight.dtype != u.dtype:
        return f"poses of {u.dtype}, weights of {weight.dtype}; the kernel takes both as fp32, bf16 or fp16"
    if softmax is not over_parents:
        return "a softmax other than the one over a child's parents"
    if not window and u.shape[2] != 1:
        return f"{u.shape[2]} children share each transform; the kernel takes one child each"
    n = plan.sizes(u, weight, window)
    return None if isinstance(votes, Votes) and n.wide and takes(votes) else plan.too_large(n)


def check_supported(votes: Votes | Windows, softmax: Softmax = over_parents) -> None:
    if (reason := supported(votes, softmax)) is not None:
        raise ValueError(f"votes: the Triton kernel cannot run, {reason}; use the matrix form")


def _per_child(logits: Tensor | None, votes: Votes) -> Tensor | None:
    """Logits (I, J) or (J,) as fp32 (I, J)."""
    return None if logits is None else logits.float().expand(votes.size()[1:3])


class TritonAttend:
    """One layer's `attend`, for children that share nothing."""

    def __init__(
        self,
        votes: Votes,
        logits: Tensor | None = None,
        leaky: bool = False,
        softmax: Softmax = over_parents,
        detach: bool = False,
    ) -> None:
        check_supported(votes, softmax)
        self.votes, self.leaky, self.detach = votes, leaky, detach
        self.logits = _per_child(logits, votes)

    def __call__(self, query: Tensor | None) -> Tensor:
        """s (B, J, D). query None: couplings of the logits alone."""
        if query is None and self.logits is None and not self.leaky and plan.wide(self.votes):
            return uniform(*self.votes)
        query = None if query is None else query.to(self.votes.u.dtype)
        return attend(*self.votes, query, self.logits, self.leaky, self.detach)[0]

    def couplings(self, query: Tensor | None) -> Tensor:
        """c (B, I, J), where they are asked for."""
        query, logits = (None if x is None else x.to(self.votes.u.dtype) for x in (query, self.logits))
        return coupling(*self.votes, logits, query, Options(self.leaky, detach=self.detach))


def dynamic_poses(
    votes: Votes,
    iterations: int,
    logits: Tensor | None = None,
    bias: Tensor | None = None,
    leaky: bool = False,
    detach: bool = False,
) -> Tensor:
    """v (B, J, D) after all iterations of dynamic routing in one operator; arguments as `dynamic_routing`'s."""
    check_supported(votes)
    bias = None if bias is None else bias.float().expand(votes.size()[2:])
    return route_dynamic(*votes, bias, _per_child(logits, votes), leaky, iterations, detach)[0]


def attention_poses(
    votes: Votes | Windows,
    pose: Tensor | None,
    iterations: int,
    scale: float = 1.0,
    norm: bool = True,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """p (B, J, D) after all iterations of attention in one operator; arguments as `attention_routing`'s."""
    check_supported(votes)
    u, w, *window = votes
    gamma = beta = None
    if norm:
        gamma = u.new_ones(votes.size()[3]) if weight is None else weight
        beta = u.new_zeros(votes.size()[3]) if bias is None else bias
    return route_attention(u, w, pose, gamma, beta, window, scale, iterations)[0]


def _lse_of(lse: Tensor, t: int, iterations: int) -> Tensor:
    """Of iteration t, from those of the last iterations (.., B, G); equal couplings need none, and get any tensor."""
    return lse[max(t + lse.shape[0] - iterations, 0)] if lse.shape[0] else lse


def _step_outputs(u, weight, query, logits, leaky, detach):
    n = plan.sizes(u, weight)
    coupled = (query is not None or logits is not None) and not n.wide
    return u.new_empty(n.b, n.j, n.c * n.h), empty_fp32(u, *((n.b, n.g) if coupled else (0, 0)))


@operator("attend")
def attend(
    u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool, detach: bool
) -> tuple[Tensor, Tensor]:
    """s (B, J, D), and lse (B, G), of no elements for equal couplings and wide poses.

    u (B, G, 1, C, d), weight (J, d, G, h), query (B, J, D), logits (G, J). detach: no gradient from the agreement
    to u and weight.
    """
    s, lse = _step_outputs(u, weight, query, logits, leaky, detach)
    if u.numel() == 0 or weight.numel() == 0:
        return s.zero_(), lse.zero_()
    if plan.wide(Votes(u, weight)):
        from .wide import attend_wide

        return attend_wide(u, weight, query, logits, leaky).to(u.dtype), lse
    step = Launch(u, weight, query, logits, leaky)
    step.forward(lse, _zeros(u, step.counters("forward")), Finish("sum", s))
    return s, lse


attend.register_fake(_step_outputs)


@gradient_of(attend, tensors=4)
def attend_backward(
    grad: Tensor, given: list[Tensor | None], kept: list[Tensor], leaky: bool, detach: bool
) -> list[Tensor | None]:
    """gu, gW, gq, gl. kept: lse."""
    u, weight, query, logits = cast(Given, given)
    if u.numel() == 0 or weight.numel() == 0:
        return [x.zero_() for x in empty_gradients(grad, given)]
    grad = grad.to(u.dtype).contiguous()
    if plan.wide(Votes(u, weight)):
        from .wide import attend_wide_backward

        gu, gw, gq, gl = attend_wide_backward(grad, u, weight, query, logits, leaky, detach)
        return [gu, gw, None if query is None else gq.to(u.dtype), gl if logits is not None else None]
    step = Launch(u, weight, query, logits, leaky, detach)
    into, counters = step.gradients(u.dtype, alone=True), _zeros(u, step.counters("backward"))
    if not step.coupled:
        return [*step.uniform_backward(grad, counters, into, again=False), None, None]
    of_query = None if query is None else torch.empty_like(query, memory_format=torch.contiguous_format)
    finish = None if of_query is None else Finish("sum", of_query)
    step.backward(grad, kept[0], counters, into, again=False, finish=finish)
    gu, gw, gl = step.finished(into)
    return [gu, gw, of_query, None if logits is None else gl]


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Counters of launches."""
    return torch.zeros(shape, dtype=torch.int32, device=like.device)


def _dynamic_outputs(u, weight, bias, logits, leaky, iterations, detach):
    n = plan.sizes(u, weight)
    v = torch.empty((n.b, n.j, n.c * n.h), dtype=u.dtype, device=u.device)
    return v, memory_for(u, _dynamic_kept(u, weight, logits, iterations))


def _dynamic_kept(u: Tensor, weight: Tensor, logits: Tensor | None, iterations: int) -> Parts:
    """s (T, B, J, D), q (T - 1, B, J, D) and lse (T or T - 1, B, G): without logits the first iteration has none."""
    n = plan.sizes(u, weight)
    shape, fp32 = (n.b, n.j, n.c * n.h), torch.float32
    lse = iterations - (logits is None), n.b, n.g
    return [((iterations, *shape), fp32), ((iterations - 1, *shape), u.dtype), (lse, fp32)]


@operator("route_dynamic")
def route_dynamic(
    u: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor | None, leaky: bool, iterations: int, detach: bool
) -> tuple[Tensor, Tensor]:
    """v (B, J, D) of the last iteration; s, q and lse of all (`_dynamic_kept`). One launch an iteration."""
    v, kept = _dynamic_outputs(u, weight, bias, logits, leaky, iterations, detach)
    s, q, lse = carve(kept, _dynamic_kept(u, weight, logits, iterations))
    steps = [Launch(u, weight, q[t - 1] if t else None, logits, leaky) for t in range(iterations if s.numel() else 0)]
    counters = _zeros(u, iterations, steps[0].counters("forward") if steps else 0)
    for t, step in enumerate(steps):
        last = t == iterations - 1
        more = t > 0 and not last
        finish = Finish("squash", v if last else q[t], s[t], q[t - 1] if more else None, bias, more=more)
        step.forward(_lse_of(lse, t, iterations), counters[t], finish)
    return v, kept


route_dynamic.register_fake(_dynamic_outputs)


@gradient_of(route_dynamic, tensors=4)
def route_dynamic_backward(
    grad: Tensor, given: list[Tensor | None], kept: list[Tensor], leaky: bool, iterations: int, detach: bool
) -> list[Tensor | None]:
    """gu, gW, gbias and gl. One launch for the output, and one an iteration."""
    u, weight, bias, logits = cast(Given, given)
    s, q, lse = carve(kept[0], _dynamic_kept(u, weight, logits, iterations))
    if s.numel() == 0:
        return [x.zero_() for x in empty_gradients(grad, given)]
    last, kept_gs = iterations - 1, 1 if bias is None else iterations  # the bias has their sum
    first = last if detach else 0
    steps = [Launch(u, weight, q[t - 1] if t else None, logits, leaky, detach) for t in range(iterations)]
    gu, gw, gl = into = steps[0].gradients(torch.float32)
    counters = torch.empty((iterations, steps[0].counters("backward")), dtype=torch.int32, device=u.device)
    total, gs = empty_fp32(u, *s.shape[1:]), torch.empty((kept_gs, *s.shape[1:]), dtype=u.dtype, device=u.device)

    def of(t: int) -> Finish:
        """gs of iteration t."""
        return Finish("squash gradient", gs[t % kept_gs], s[t], total, more=t < last - 1)

    finish_alone(grad.contiguous()[None], of(last), counters)
    for t in range(last, first - 1, -1):
        step, here = steps[t], gs[t % kept_gs]
        if not step.coupled:
            gu, gw = step.uniform_backward(here, counters[t], into, again=t < last)
            break
        finish = None if t == first else of(t - 1)
        step.backward(here, _lse_of(lse, t, iterations), counters[t], into, again=t < last, finish=finish)
    else:
        gu, gw, gl = step.finished(into)
    gbias = None if bias is None else gs[first:].sum((0, 1), dtype=torch.float32)
    return [gu, gw, gbias, None if logits is None else gl]


def _attention_outputs(u, weight, pose, gamma, beta, window, scale, iterations):
    n = plan.sizes(u, weight, window)
    p = torch.empty((n.b, n.j, n.c * n.h), dtype=u.dtype, device=u.device)
    return p, memory_for(u, _attention_kept(u, weight, pose, window, iterations))


def _attention_kept(u: Tensor, weight: Tensor, pose: Tensor | None, window: list[int], iterations: int) -> Parts:
    """s (T, B, J, D) and lse (T or T - 1, B, G): without a pose to go on from the first iteration has none."""
    n = plan.sizes(u, weight, window)
    s, lse = (iterations, n.b, n.j, n.c * n.h), (iterations - (pose is None), n.b, n.g)
    return [(s, torch.float32), (lse, torch.float32)]


def _attention_gradients(grad, given, kept, window, scale, iterations):
    gu, gw, gpose, *_ = empty_gradients(grad, given)
    gnorm = grad.new_empty(0) if given[3] is None else grad.new_empty((2, *given[3].shape), dtype=torch.float32)
    return [torch.empty_like(given[0]) if window else gu, gw, gpose, gnorm]


def _query(pose: Tensor | None, scale: float, u: Tensor) -> Tensor | None:
    return None if pose is None else (scale * pose.to(u.dtype)).contiguous()


@operator("route_attention")
def route_attention(
    u: Tensor, weight: Tensor, pose: Tensor | None, gamma: Tensor | None, beta: Tensor | None,
    window: list[int], scale: float, iterations: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """p (B, J, D) of the last iteration; s and lse of all (`_attention_kept`). One launch an iteration.

    u (B, G, 1, C, d), or with a window (C, kernel, stride) an image (B, T, H, W, D). pose: the parents' so far.
    gamma, beta (D,): LayerNorm's scale and shift, None: no LayerNorm.
    """
    p, kept = _attention_outputs(u, weight, pose, gamma, beta, window, scale, iterations)
    s, lse = carve(kept, _attention_kept(u, weight, pose, window, iterations))
    query, counters, held = _query(pose, scale, u), None, 0 if pose is None else pose.numel()
    for t in range(iterations if s.numel() else 0):
        step, last = Launch(u, weight, query, window=window, pose=held), t == iterations - 1
        counters = _zeros(u, iterations, step.counters("forward")) if counters is None else counters
        query = torch.empty_like(p) if query is None and not last else query
        out = p if last or query is None else query
        finish = Finish("norm", out, s[t], None, gamma, beta, scale=1.0 if last else scale)
        step.forward(_lse_of(lse, t, iterations), counters[t], finish)
    return p, kept


route_attention.register_fake(_attention_outputs)


@gradient_of(route_attention, tensors=5, fake=_attention_gradients)
def route_attention_backward(
    grad: Tensor, given: list[Tensor | None], kept: list[Tensor], window: list[int], scale: float, iterations: int
) -> list[Tensor | None]:
    """gu, gW, gpose, and those of gamma and beta as (2, D). The queries are made again from s."""
    u, weight, pose, gamma, beta = cast(tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], given)
    s, lse = carve(kept[0], _attention_kept(u, weight, pose, window, iterations))
    if s.numel() == 0:
        return [x.zero_() for x in _attention_gradients(grad, given, kept, window, scale, iterations)]
    last, held, (_, b, j, d) = iterations - 1, 0 if pose is None else pose.numel(), s.shape
    gs = torch.empty((b, j, d), dtype=u.dtype, device=u.device)
    query = torch.empty_like(gs) if last else _query(pose, scale, u)
    sums = empty_fp32(s, iterations, 0 if gamma is None else plan.finishers(b * j), 2, d)
    gpose = None if pose is None else torch.empty_like(pose, memory_format=torch.contiguous_format)

    def of(t: int) -> Finish:
        """gs of iteration t, and its query if it is not the first."""
        finish = Finish("norm gradient", gs, s[t], sums[t], gamma, beta, scale=1.0 if t == last else scale)
        return finish._replace(before=s[t - 1], query=query, more=True, next_scale=scale) if t else finish

    step = Launch(u, weight, query, window=window, pose=held)
    into = step.gradients(torch.float32 if last else u.dtype, alone=last == 0)
    counters = torch.empty((iterations, step.counters("backward")), dtype=torch.int32, device=u.device)
    finish_alone(grad.contiguous()[None], of(last), counters)
    for t in range(last, -1, -1):
        if t == 0 and last:
            step = Launch(u, weight, _query(pose, scale, u), window=window, pose=held)
        if not step.coupled:
            gu, gw = step.uniform_backward(gs, counters[t], into, again=t < last)
            break
        finish = of(t - 1) if t else Finish("sum", cast(Tensor, gpose), scale=scale)
        step.backward(gs, _lse_of(lse, t, iterations), counters[t], into, again=t < last, finish=finish)
    else:
        gu, gw, _ = step.finished(into)
    return [gu, gw, gpose, None if gamma is None else sums.sum((0, 1))]
