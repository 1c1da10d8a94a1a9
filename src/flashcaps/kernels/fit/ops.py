"""A whole routing as one operator: all iterations forward, and all of them backward.

One operator, not one for each iteration, because gradients of poses and transforms are then summed in place, and the
arithmetic between iterations is part of kernels that run anyway. Kept from forward to backward: each iteration's
parents and Z, nothing else; layouts of W, shares and stored votes are made again. Wide poses go a few examples at a
time both ways (`_fit_parts`).

A convolutional layer's children are read where they lie in the image, and go backward a few examples at a time: as
patches, their gradients would be kernel^2 / stride^2 times the image.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .forward import Found, Rule, describe, moments, normaliser
from .gradients import Parents
from .parts import gradients_in_parts, grouped, is_wide, parts_of
from .source import Source
from .walk_back import Given, Inputs, Options, gradients_of

INPUTS = len(Inputs._fields)


class Outputs(NamedTuple):
    """After each of T iterations what it found; Z (T - 1, B, I)."""

    found: list[Found]
    normalisers: Tensor

    @classmethod
    def of(cls, flat: list[Tensor]) -> Outputs:
        steps = len(flat) // 4
        return cls([Found(*flat[t : 4 * steps : steps]) for t in range(steps)], flat[-1])

    def rows(self, rows: slice) -> Outputs:
        return Outputs([Found(*(y[rows] for y in x)) for x in self.found], self.normalisers[:, rows])


def _shapes(u: Tensor, weight: Tensor, steps: int, window: list[int]) -> list[tuple[int, ...]]:
    """Of the operator's outputs."""
    (j, k, i, h), c, b = weight.shape, u.shape[3], u.shape[0]
    if window:
        c, b = u.shape[4] // k, b * math.prod((size - window[0]) // window[1] + 1 for size in u.shape[2:4])
    else:
        i *= u.shape[2]
    d = c * h
    return [*[(b, d, j)] * (2 * steps), *[(b, j)] * (2 * steps), (steps - 1, b, i)]


@torch.library.custom_op("flashcaps::fit", mutates_args=())
def fit_routing(
    u: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, share: Tensor | None, first: Tensor | None,
    beta: Tensor | None, offset: Tensor | None, slope: Tensor | None,
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float,
) -> list[Tensor]:  # fmt: skip
    """Mean and variance (B, D, J) and logit (B, J) of the parents after each iteration, T of each in turn; then what
    backward needs: their weight (B, J), T of them, and Z (T - 1, B, I)."""
    out = [torch.empty(shape, device=gate.device) for shape in _shapes(u, weight, len(scales), window)]
    x, o = Inputs(u, weight, bias, gate, share, first, beta, offset, slope), Options(scales, spread, grid, window, eps)
    for rows, part, source in parts_of(x, o, grouped(weight) if is_wide(x, o) else None):
        _route(source, part, o, Outputs.of(out).rows(rows))
        del source, part
    return out


def _route(source: Source, x: Inputs, o: Options, out: Outputs) -> None:
    """All iterations forward."""
    rule, last = Rule(x.offset, x.slope, o.spread), len(o.scales) - 1
    gate, table, z = o.gate_of(x.gate), None, None
    for t, scale in enumerate(o.scales):
        weighted = o.weighted(gate, x.share, z)
        benefit = moments(source, (table, z, None if t else x.first), weighted, x.beta, o.eps, out.found[t])
        del weighted, table
        table = describe(source, rule, out.found[t], benefit, scale, t == last)
        if table is not None:
            z = normaliser(source, table, out.normalisers[t])


@fit_routing.register_fake
def _(
    u: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, share: Tensor | None, first: Tensor | None,
    beta: Tensor | None, offset: Tensor | None, slope: Tensor | None,
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float,
) -> list[Tensor]:  # fmt: skip
    return [gate.new_empty(shape) for shape in _shapes(u, weight, len(scales), window)]


@torch.library.custom_op("flashcaps::fit_backward", mutates_args=())
def fit_routing_backward(
    u: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, share: Tensor | None, first: Tensor | None,
    beta: Tensor | None, offset: Tensor | None, slope: Tensor | None,
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float,
    outputs: list[Tensor], gradients: list[Tensor | None], gated: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the tensors that there are, from those of mean, variance and logit of each iteration.

    gated: whether there is one of the gate, which else is empty.
    """
    steps = len(scales)
    given = [Parents(*gradients[t::steps]) for t in range(steps)]
    x = Inputs(u, weight, bias, gate, share, first, beta, offset, slope)
    o, past = Options(scales, spread, grid, window, eps, gated), Given(*Outputs.of(outputs), given)
    found = gradients_in_parts(x, o, past) if is_wide(x, o) else gradients_of(x, o, past)
    return [y for y in found if y is not None]


@fit_routing_backward.register_fake
def _(
    u: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor, share: Tensor | None, first: Tensor | None,
    beta: Tensor | None, offset: Tensor | None, slope: Tensor | None,
    scales: list[float], spread: bool, grid: list[int], window: list[int], eps: float,
    outputs: list[Tensor], gradients: list[Tensor | None], gated: bool,
) -> list[Tensor]:  # fmt: skip
    inputs = (weight, bias, gate if gated else gate.new_empty(0), share, first, beta, offset, slope)
    whole = torch.empty_like(u) if window else torch.empty_like(u, memory_format=torch.contiguous_format)
    rest = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs if x is not None]
    return [whole, *rest]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.options = inputs[INPUTS:]
    ctx.given = [x is not None for x in inputs[:INPUTS]]
    ctx.set_materialize_grads(False)  # most outputs have no gradient, those of children's size never
    ctx.save_for_backward(*inputs[:INPUTS], *output)


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    inputs, outputs = ctx.saved_tensors[:INPUTS], ctx.saved_tensors[INPUTS:]
    gated, steps = ctx.needs_input_grad[3], len(ctx.options[0])
    found = iter(
        fit_routing_backward(*inputs, *ctx.options, list(outputs), list(gradients[: 3 * steps]), gated)
    )
    of_inputs = [next(found) if there else None for there in ctx.given]
    if not gated:
        of_inputs[3] = None
    # An empty list might be one of tensors.
    of_lists: list[list[Tensor] | None] = [None if ctx.options[k] else [] for k in (0, 2, 3)]
    return *of_inputs, of_lists[0], None, *of_lists[1:], None


fit_routing.register_autograd(_differentiate, setup_context=_keep)
