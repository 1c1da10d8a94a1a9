"""A whole routing as one operator: all iterations forward, and all of them backward.

One operator, not one for each iteration, because gradients of poses and transforms are then summed in place, and the
arithmetic between iterations is part of kernels that run anyway. Kept from forward to backward: each iteration's
parents (B, D, J) and Z (B, I), nothing else; layouts of W, shares and stored votes are made again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..common.operators import operator
from .backward import Given, ParentGradients, gradients_of
from .forward import Outputs, route
from .plan import Inputs, Options, by_group, in_parts, source_of, wide_parts

INPUTS = len(Inputs._fields)


def _shapes(u: Tensor, weight: Tensor, steps: int, window: list[int]) -> list[tuple[int, ...]]:
    """Shapes of the operator's outputs."""
    (j, k, i, h), c, b = weight.shape, u.shape[3], u.shape[0]
    if window:
        c, b = u.shape[4] // k, b * math.prod((size - window[0]) // window[1] + 1 for size in u.shape[2:4])
    else:
        i *= u.shape[2]
    d = c * h
    return [*[(b, d, j)] * (2 * steps), *[(b, j)] * (2 * steps), (steps - 1, b, i)]


@operator("fit")
def fit_routing(
    u: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, first_z: Tensor | None, first: Tensor | None,
    beta: Tensor | None, offset: Tensor | None, slope: Tensor | None,
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float, taus: list[float],
) -> list[Tensor]:  # fmt: skip
    """Arguments as in `Inputs` and `Options`. Mean and variance (B, D, J) and logit (B, J) of the parents after each
    iteration, T of each in turn; then what backward needs: their weight (B, J), T of them, and Z (T - 1, B, I)."""
    flat = [torch.empty(shape, device=gate.device) for shape in _shapes(u, weight, len(scales), window)]
    x = Inputs(u, weight, bias, gate, first_z, first, beta, offset, slope)
    o, out = Options(scales, spread, grid, window, eps, taus), Outputs.of(flat)
    if not in_parts(x, o):
        route(source_of(u, weight, bias, o.window_of(u)), x, o, out)
        return flat
    for rows, part, source in wide_parts(x, o, by_group(weight.float())):
        route(source, part, o, out.rows(rows))
        del source, part
    return flat


@fit_routing.register_fake
def _(*given: Any) -> list[Tensor]:
    u, weight, gate, o = given[0], given[1], given[3], Options(*given[INPUTS:])
    return [gate.new_empty(shape) for shape in _shapes(u, weight, len(o.scales), o.window)]


@operator("fit_backward")
def fit_routing_backward(
    tensors: list[Tensor | None], outputs: list[Tensor], gradients: list[Tensor | None],
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float, taus: list[float], gated: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the tensors of `Inputs` that there are, from those of mean, variance and logit of each iteration.

    gated: whether the gate's gradient is asked for; otherwise it is empty.
    """
    steps = len(scales)
    given = Given(Outputs.of(outputs), [ParentGradients(*gradients[t::steps]) for t in range(steps)])
    options = Options(scales, spread, grid, window, eps, taus, gated)
    found = gradients_of(Inputs(*tensors), options, given)  # type: ignore[arg-type]
    return [y for y in found if y is not None]


@fit_routing_backward.register_fake
def _(tensors: list[Tensor | None], outputs: list[Tensor], gradients: list[Tensor | None], *given: Any) -> list[Tensor]:
    x, o = Inputs(*tensors), Options(*given)  # type: ignore[arg-type]
    x = x._replace(gate=x.gate if o.gated else x.gate.new_empty(0))
    whole = torch.empty_like(x.u) if o.window else torch.empty_like(x.u, memory_format=torch.contiguous_format)
    return [whole, *(torch.empty_like(y, memory_format=torch.contiguous_format) for y in x[1:] if y is not None)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.options = inputs[INPUTS:]
    ctx.given = [x is not None for x in inputs[:INPUTS]]
    ctx.set_materialize_grads(False)  # most outputs have no gradient, those of children's size never
    ctx.save_for_backward(*inputs[:INPUTS], *output)


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    inputs, outputs = ctx.saved_tensors[:INPUTS], ctx.saved_tensors[INPUTS:]
    gated, steps = ctx.needs_input_grad[3], len(ctx.options[0])
    wanted = list(gradients[: 3 * steps])
    found = iter(fit_routing_backward(list(inputs), list(outputs), wanted, *ctx.options, gated))
    of_inputs = [next(found) if there else None for there in ctx.given]
    if not gated:
        of_inputs[3] = None
    # An empty list might be one of tensors.
    of_lists: list[list[Tensor] | None] = [None if ctx.options[k] else [] for k in (0, 2, 3, 5)]
    return *of_inputs, of_lists[0], None, *of_lists[1:3], None, of_lists[3]


fit_routing.register_autograd(_differentiate, setup_context=_keep)
