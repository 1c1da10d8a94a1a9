"""Discriminative routing's own training step, in alternation with the optimiser's (its Algorithm 1).

    loss = criterion(model(images), labels)
    ascend_coefficients(model, labels)      # after the forward pass, while its graph and weights are there
    loss.backward()
    optimiser.step()

The coefficients' step uses the votes of this very forward pass, so its place before or after the optimiser's makes
no difference to either; here the graph it may need is still alive.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .capsule_layer import CapsuleLayer
from .kernels.discriminative import weighted_sum, weighted_sum_agreement
from .routing.discriminative import Discriminative, ascend, label_signs


def discriminative_layers(model: nn.Module) -> list[CapsuleLayer]:
    """Layers with coefficients of their own, lowest first."""
    return [m for m in model.modules() if isinstance(m, CapsuleLayer) and isinstance(m.routing, Discriminative)]


def ascend_coefficients(model: nn.Module, labels: Tensor) -> None:
    """One step of gradient ascent for the coefficients of every discriminative layer of `model`, in place.

    The class layer is the last one. Coefficients of hidden layers follow from its objective by the chain rule.
    """
    layers = discriminative_layers(model)
    if not layers:
        return
    top = layers[-1].seen
    if top.votes is None or top.coefficients is None:
        raise RuntimeError("ascend_coefficients: no forward pass in training mode came before")
    batch = top.votes.shape[0]
    if len(layers) == 1:
        agreements = [weighted_sum_agreement(top.votes, top.coefficients, labels)]
    else:
        v = weighted_sum(top.votes, top.coefficients)
        objective = (label_signs(labels, v.shape[1], v.dtype) * v.square().sum(-1)).sum()
        wanted = [x for x in (layer.seen.coefficients for layer in layers) if x is not None]
        agreements = [g / 2 for g in torch.autograd.grad(objective, wanted, retain_graph=True)]
    if dist.is_initialized():
        for a in agreements:
            dist.all_reduce(a)  # a sum over the whole batch, on every rank the same
        batch *= dist.get_world_size()
    for layer, agreement in zip(layers, agreements, strict=True):
        options, b = cast(Discriminative, layer.routing), layer.coefficients
        b.copy_(ascend(b, agreement.to(b.dtype), batch, options.rate, options.strength, options.penalty))
        layer.seen.votes = layer.seen.coefficients = None
