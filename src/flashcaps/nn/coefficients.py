"""Discriminative routing's own training step, in alternation with the optimiser's (its Algorithm 1).

    loss = criterion(model(images), labels)
    ascend_coefficients(model, labels)      # after the forward pass, while its graph and weights are there
    loss.backward()
    optimiser.step()

Both steps use the same forward pass and neither sees what the other did, so their order does not matter. This one is
convenient, because the weights and the graph that the coefficients need still exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..kernels.discriminative import weighted_sum, weighted_sum_agreement
from ..kernels.dispatch import pick_form
from ..kernels.votes import Votes
from ..routing.checks import check_devices, check_labels, check_number
from ..routing.discriminative import Discriminative, ForwardPass, ascend, label_signs
from ..routing.math import full_precision
from .capsules import CapsuleLayer
from .losses import ABSENT, PRESENT


def discriminative_layers(model: nn.Module) -> list[CapsuleLayer]:
    """Layers with coefficients of their own, lowest first. Asked in every step, and `modules` makes all their names."""
    found: list[CapsuleLayer] = []
    rest: list[nn.Module | None] = [model]
    while rest:
        m = rest.pop()
        if isinstance(m, CapsuleLayer) and isinstance(m.memory, ForwardPass) and m not in found:
            found.append(m)
        if m is not None:
            rest.extend(reversed(m._modules.values()))
    return found


@full_precision
def _agreements(
    labels: Tensor, votes: Votes, coefficients: Tensor, below: list[Tensor], triton: bool, bounded: bool
) -> list[Tensor]:
    """Half the objective's gradient for the coefficients below, then for the class layer's own."""
    margins = (PRESENT, ABSENT) if bounded else None
    own = weighted_sum_agreement(votes, coefficients, labels, triton, margins)
    if not below:
        return [own]
    v = weighted_sum(votes, coefficients)
    objective = (label_signs(labels, v, margins) * v.square().sum(-1)).sum()
    return [g / 2 for g in torch.autograd.grad(objective, below, retain_graph=True)] + [own]


class Slopes(NamedTuple):
    """Half the objective's gradient for the coefficients of each layer, summed over `batch` examples."""

    agreements: list[Tensor]
    batch: int


def ascend_coefficients(model: nn.Module, labels: Tensor, pace: float | Tensor = 1.0) -> None:
    """One step of gradient ascent for the coefficients of every discriminative layer of `model`, in place.

    The class layer is the last one. Coefficients of hidden layers follow from its objective by the chain rule.
    pace: the weights' learning rate now over the one they were given, by which `bounded` layers scale their own rate.
    """
    if not isinstance(pace, Tensor):
        check_number("pace", pace)
    if layers := discriminative_layers(model):
        _ascend(layers, [_slopes(layers, labels)], pace)


def coefficient_slopes(model: nn.Module, labels: Tensor) -> Slopes:
    """The slopes of the last forward pass, whose votes are then dropped."""
    layers = discriminative_layers(model)
    return _slopes(layers, labels) if layers else Slopes([], 0)


def _slopes(layers: list[CapsuleLayer], labels: Tensor) -> Slopes:
    *lower, top = passes = [cast(ForwardPass, layer.memory) for layer in layers]
    if top.votes is None or top.coefficients is None:
        raise RuntimeError("ascend_coefficients: no forward pass in training mode came before")
    for layer, kept in zip(layers, passes, strict=True):
        if kept.version is not None and kept.version != layer.weight._version:
            raise RuntimeError("ascend_coefficients: weights changed since the forward pass; call before the optimiser")
    batch = top.votes.size()[0]
    check_labels("labels", labels, batch, top.coefficients.shape[1])
    check_devices(top.coefficients, labels=labels)
    below = [x for x in (kept.coefficients for kept in lower) if x is not None and x.requires_grad]
    if len(below) < len(layers) - 1:
        raise RuntimeError("ascend_coefficients: hidden discriminative layers belong in a CapsuleStack")
    triton = pick_form(layers[-1].name, top.votes) == "triton"
    bounded = cast(Discriminative, layers[-1].routing).bounded
    agreements = _agreements(labels, top.votes, top.coefficients, below, triton, bounded)
    for kept in passes:
        kept.clear()
    return Slopes(agreements, batch)


def ascend_together(model: nn.Module, parts: Sequence[Slopes], pace: float | Tensor = 1.0) -> None:
    """One step of all layers' coefficients by a batch that came in parts: Eq. 15's penalty counts once a step."""
    _ascend(discriminative_layers(model), parts, pace)


def _ascend(layers: list[CapsuleLayer], parts: Sequence[Slopes], pace: float | Tensor) -> None:
    batch = sum(part.batch for part in parts)
    agreements = [reduce(torch.add, same) for same in zip(*(part.agreements for part in parts), strict=True)]
    if dist.is_initialized():
        for a in agreements:
            dist.all_reduce(a)  # a sum over the whole batch, on every rank the same
        batch *= dist.get_world_size()
    for layer, agreement in zip(layers, agreements, strict=True):
        options, b = cast(Discriminative, layer.routing), layer.get_buffer("coefficients")
        rate = options.rate * pace if options.bounded else options.rate
        b.copy_(ascend(b.to(agreement.dtype), agreement, batch, rate, options.strength, options.penalty))
