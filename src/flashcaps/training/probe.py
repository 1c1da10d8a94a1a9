"""How much each iteration of dynamic routing still changes its logits, measured while a model trains.

A run logs it at a few early steps and ever fewer later ones; the figure `routing_logits` is drawn from these lines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..nn.capsules import DenseCapsules
from .batches import Batch
from .evaluate import evaluating, forward

ITERATIONS = 6
IMAGES = 16


def probe_due(step: int) -> bool:
    """At steps 1, 2, 5, 10, 20, 50, ...: most changes early."""
    return step > 0 and str(step).rstrip("0") in ("1", "2", "5")


def has_routing_logits(model: Any) -> bool:
    """Whether the class layer is a dense one of dynamic routing, whose logits add up."""
    layers = getattr(getattr(model, "capsules", None), "layers", None)
    return layers is not None and layers[-1].name == "dynamic" and isinstance(layers[-1], DenseCapsules)


def probe_logits(model: Any, batch: Batch, iterations: int = ITERATIONS) -> list[float]:
    """`logit_change` on the first images of a batch. Weights, statistics and random numbers do not change."""
    first = batch._replace(**{name: x[:IMAGES] for name, x in batch._asdict().items() if x is not None})
    with evaluating(model):
        return [float(f"{x:.6g}") for x in logit_change(model, first, iterations).tolist()]


def logit_change(model: Any, batch: Batch, iterations: int) -> Tensor:
    """mean |b_ij after - b_ij before| = mean |u_j|i . v_j| of the class layer, for every iteration, (iterations,)."""
    layers = list(model.capsules.layers)
    own = [layer.routing.iterations for layer in layers]
    inputs: list[Any] = []
    hook = layers[-1].register_forward_pre_hook(lambda layer, given: inputs.append(given))
    try:
        for layer in layers:
            layer.set_iterations(iterations)
        forward(model, batch)
        hook.remove()
        routed = layers[-1](*inputs[0], record=True)
    finally:
        hook.remove()
        for layer, before in zip(layers, own, strict=True):
            layer.set_iterations(before)
    votes = layers[-1].votes(inputs[0][0])  # (B, I, J, D)
    changes = [torch.einsum("bijd,bjd->bij", votes, step.pose.to(votes.dtype)).abs().mean() for step in routed.history]
    return torch.stack(changes).cpu()
