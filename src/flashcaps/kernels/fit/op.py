"""A whole routing as one operator: all iterations forward, and all of them backward.

One operator, not one for each iteration, because gradients of poses and transforms are then summed in place, and the
arithmetic between iterations is part of kernels that run anyway. What makes kernels' `Inputs` of em's and heinsen's
tensors is part of it, too: every autograd node takes the host as long as a launch. Kept from forward to backward: each
iteration's parents (B, D, J) and Z (B, I), nothing else; layouts of W, shares and stored votes are made again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..common.operators import operator
from ..common.rows import Parts, carve, memory_for
from .backward import Given, ParentGradients, gradients_of
from .forward import Outputs, Parents, route
from .plan import Inputs, Options, by_group, in_parts, source_of, wide_parts

TENSORS = 10  # of the operator: as `inputs_of` takes them


def _sizes(u: Tensor, weight: Tensor, window: list[int]) -> tuple[int, int, int, int]:
    """B, I, J and D."""
    (j, k, i, h), c, b = weight.shape, u.shape[3], u.shape[0]
    if window:
        c, b = u.shape[4] // k, b * math.prod((size - window[0]) // window[1] + 1 for size in u.shape[2:4])
    else:
        i *= u.shape[2]
    return b, i, j, c * h


def _kept(u: Tensor, weight: Tensor, steps: int, shown: int, window: list[int]) -> Parts:
    """What backward needs besides the last `shown` parents, which are outputs: mean, variance (B, D, J) and logit
    (B, J) of the parents before them, the weight (B, J) of all, and Z (T - 1, B, I)."""
    (b, i, j, d), early = _sizes(u, weight, window), steps - shown
    shapes = [(early, b, d, j), (early, b, d, j), (early, b, j), (steps, b, j), (steps - 1, b, i)]
    return [(shape, torch.float32) for shape in shapes]


def _memory(u: Tensor, weight: Tensor, steps: int, shown: int, window: list[int]) -> list[Tensor]:
    """Memory for the operator's outputs."""
    b, _, j, d = _sizes(u, weight, window)
    shapes = [*[(b, d, j)] * (2 * shown), *[(b, j)] * shown]
    flat = [torch.empty(shape, device=u.device) for shape in shapes]
    return [*flat, memory_for(u, _kept(u, weight, steps, shown, window))]


def _outputs(flat: list[Tensor], u: Tensor, weight: Tensor, steps: int, shown: int, window: list[int]) -> Outputs:
    *early, weights, z = carve(flat[-1], _kept(u, weight, steps, shown, window))
    found = [[*x.unbind(), *flat[k * shown : (k + 1) * shown]] for k, x in enumerate(early)]
    return Outputs([Parents(*x) for x in zip(*found, weights.unbind(), strict=True)], z)


def inputs_of(
    u: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, first_z: Tensor | None, first: Tensor | None,
    use: Tensor | None, ignore: Tensor | None, offset: Tensor | None, cost: Tensor | None, window: list[int],
) -> Inputs:  # fmt: skip
    """What kernels take: beta, offset and slope of  scale (offset + n slope - ...) + sum_i beta w.

    em has an offset (J,) and a cost (J,) of each of D elements, heinsen betas (J,) or (I, J): its  sum_i beta_use w -
    beta_ignore (gate - w)  is one of these, with a scale of 1.
    """
    u = u if window else u.contiguous()
    if use is None or ignore is None:
        d = _sizes(u, weight, window)[3]
        return Inputs(u, weight, bias, gate, first_z, first, None, offset, cost, (1.0, -float(d)))
    both = use + ignore
    beta, slope = (both, None) if both.ndim == 2 else (None, both)
    lost = gate @ ignore if ignore.ndim == 2 else gate.sum(1, keepdim=True) * ignore
    return Inputs(u, weight, bias, gate, first_z, first, beta, lost, slope, (-1.0, 1.0))


def _gradients(
    found: list[Tensor | None], gate: Tensor, use: Tensor | None, ignore: Tensor | None, gated: bool
) -> list[Tensor | None]:
    """From the gradients of `Inputs` those of what they were made of."""
    *others, of_gate, of_z, of_first, of_beta, of_logit = found
    if use is None or ignore is None:
        of_terms = [] if of_logit is None else [y.sum(0) for y in of_logit]
        return [*others, of_gate, of_z, of_first, None, None, *of_terms]
    assert of_logit is not None
    lost, both = of_logit[0], of_logit[1].sum(0) if of_beta is None else of_beta  # (B, J); (J,) or (I, J)
    if ignore.ndim == 2:
        of_ignore, more = gate.t() @ lost, lost @ ignore.t()
    else:
        of_ignore, more = gate.sum(1) @ lost, (lost @ ignore)[:, None]
    of_ignore = of_ignore + both.sum_to_size(ignore.shape)
    of_gate = of_gate + more if gated and of_gate is not None else of_gate
    return [*others, of_gate, of_z, of_first, both.sum_to_size(use.shape), of_ignore, None, None]


@operator("fit")
def fit_routing(
    u: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, first_z: Tensor | None, first: Tensor | None,
    use: Tensor | None, ignore: Tensor | None, offset: Tensor | None, cost: Tensor | None,
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float, taus: list[float], shown: int,
) -> list[Tensor]:  # fmt: skip
    """Arguments as in `inputs_of` and `Options`. Returns mean and variance (B, D, J) and logit (B, J) of the parents
    after each of the last `shown` iterations, then what else backward needs (`_kept`)."""
    flat = _memory(u, weight, len(scales), shown, window)
    x = inputs_of(u, weight, bias, gate, first_z, first, use, ignore, offset, cost, window)
    o, out = Options(scales, spread, grid, window, eps, taus), _outputs(flat, u, weight, len(scales), shown, window)
    if not in_parts(x, o):
        route(source_of(x.u, weight, bias, o.window_of(x.u)), x, o, out)
        return flat
    for rows, part, source in wide_parts(x, o, by_group(weight.float())):
        route(source, part, o, out.rows(rows))
        del source, part
    return flat


@fit_routing.register_fake
def _(*given: Any) -> list[Tensor]:
    o = Options(*given[TENSORS:-1])
    return _memory(given[0], given[1], len(o.scales), given[-1], o.window)


@operator("fit_backward")
def fit_routing_backward(
    tensors: list[Tensor | None], outputs: list[Tensor], gradients: list[Tensor | None],
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float, taus: list[float], shown: int,
    gated: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of those tensors that are not None, from the gradients of mean, variance and logit.

    gated: whether the gate's gradient is asked for; otherwise it is empty.
    """
    x, steps = inputs_of(*tensors, window), len(scales)  # type: ignore[arg-type, call-arg]
    use, ignore = tensors[6:8]
    wanted = [ParentGradients(None, None, None)] * (steps - shown)
    wanted += [ParentGradients(*gradients[t::shown]) for t in range(shown)]
    given = Given(_outputs(outputs, x.u, x.weight, steps, shown, window), wanted)
    found = gradients_of(x, Options(scales, spread, grid, window, eps, taus, gated), given)
    return [y for y in _gradients(found, x.gate, use, ignore, gated) if y is not None]


@fit_routing_backward.register_fake
def _(tensors: list[Tensor | None], outputs: list[Tensor], gradients: list[Tensor | None], *given: Any) -> list[Tensor]:
    (u, *others), window, gated = tensors, given[3], given[-1]
    assert u is not None
    whole = torch.empty_like(u) if window else torch.empty_like(u, memory_format=torch.contiguous_format)
    if not gated:
        others[2] = u.new_empty(0, dtype=torch.float32)
    return [whole, *(torch.empty_like(y, memory_format=torch.contiguous_format) for y in others if y is not None)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.options = inputs[TENSORS:]
    ctx.given = [x is not None for x in inputs[:TENSORS]]
    ctx.set_materialize_grads(False)  # most outputs have no gradient, those of children's size never
    ctx.save_for_backward(*inputs[:TENSORS], *output)


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    saved, gated = list(ctx.saved_tensors), ctx.needs_input_grad[3]  # asked once: each time torch looks at all of them
    given = saved[:TENSORS], saved[TENSORS:], list(gradients[:-1])
    found = iter(fit_routing_backward(*given, *ctx.options, gated))
    of_inputs = [next(found) if there else None for there in ctx.given]
    if not gated:
        of_inputs[3] = None
    # An empty list might be one of tensors.
    of_lists: list[list[Tensor] | None] = [None if ctx.options[k] else [] for k in (0, 2, 3, 5)]
    return *of_inputs, of_lists[0], None, *of_lists[1:3], None, of_lists[3], None


fit_routing.register_autograd(_differentiate, setup_context=_keep)
