"""Whether routing routes: how far couplings are from uniform, whether votes follow the answer, how often the answer
changes from iteration to iteration, and how much each iteration of dynamic routing changes its logits.

A run logs the last at steps 1, 2, 5, 10, 20, ...; the figure `routing_logits` shows these lines of the log.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..nn.capsules import DenseCapsules
from ..nn.stack import CapsuleStack
from ..nn.trace import LayerTrace, children, decisions, iterated, keeps_couplings, presence, trace_layers
from ..routing import Routed
from .batches import Batch, Held
from .evaluate import answers, evaluating, forward, is_right

IMAGES = 50  # at once, as couplings of every layer and iteration are held for all of them
PROBED_ITERATIONS, PROBED_IMAGES = 6, 16


@dataclass(frozen=True)
class LayerRouting:
    """A capsule layer with J parents (types, in a convolutional layer), one number for each iteration.

    largest: a child's largest coupling times J, 1 for uniform couplings, J if one parent has all. entropy: that of its
    couplings divided by ln J, 1 and 0 in these cases. Both are means over images and children, weighted by presence.
    """

    routing: str
    parents: int
    largest: tuple[float, ...]
    entropy: tuple[float, ...]


@dataclass(frozen=True)
class RoutingMeasure:
    """The capsule layers from the lowest, and what the class layer would answer after each iteration.

    wrong: images with a wrong answer after each iteration. changed: images whose answer changes between iterations.
    righted: images whose first answer is wrong and whose last is right. spoiled: the reverse. attracted, after each
    iteration: the share of all votes that a class gets in images where it is the answer, less its share in the others,
    mean over classes, times J; 0 if shares do not depend on the answer. fixed: nothing iterates, as couplings are
    signed coefficients of the layers, the same for every image; shares are then of their absolute values.
    """

    examples: int
    layers: tuple[LayerRouting, ...]
    wrong: tuple[int, ...]
    changed: int
    righted: int
    spoiled: int
    attracted: tuple[float, ...]
    fixed: bool = False


def measure_routing(model: Any, held: Held, *, batch: int = IMAGES, threshold: float = 0.5) -> RoutingMeasure:
    """Measures on all of `held`. threshold: of scores, where the answer is every class above it."""
    if not isinstance(getattr(model, "capsules", None), CapsuleStack):
        raise ValueError("model: expected a capsule network, whose routing can be measured, got one without capsules")
    if len(held) == 0:
        raise ValueError("held: expected at least one example to measure on, got none")
    totals: list[Tensor] = []  # of each layer, (T, 3)
    wrong, counts = torch.zeros((), dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    got, images = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)  # (T, 2, J), (2, J)
    with evaluating(model):
        for b in held.batches(batch):
            traces = traced(model, b)
            sums = [torch.stack([weighted(*decisions(x, step.coupling)) for step in x.steps]) for x in traces]
            totals = [x + y for x, y in zip(totals, sums, strict=True)] if totals else sums
            steps = [model.head(Routed(step.pose, step.activation)) for step in traces[-1].steps]
            given = torch.stack([answers(scores, held.rule, threshold) for scores in steps])  # (T, B, K)
            right = torch.stack([is_right(scores, b.targets, held.rule, threshold) for scores in steps])  # (T, B)
            mine = torch.stack([given[-1], ~given[-1]]).double()  # (2, B, K): a class is the answer, or is not
            shares = torch.stack([received(traces[-1], step.coupling) for step in traces[-1].steps])  # (T, B, J)
            got, images = got + (mine * shares[:, None]).sum(2).cpu(), images + mine.sum(1).cpu()
            other = (given != given[0]).any(2).any(0)  # (B,)
            wrong = wrong + (~right).sum(1).cpu()
            counts += torch.stack([other, ~right[0] & right[-1], right[0] & ~right[-1]]).sum(1).cpu()
    layers = []
    for x, total in zip(traces, totals, strict=True):
        largest, entropy = (total[:, :2] / total[:, 2:]).T.tolist()
        layers.append(LayerRouting(x.layer.name, x.steps[0].coupling.shape[2], tuple(largest), tuple(entropy)))
    changed, righted, spoiled = counts.tolist()
    share = (got / images)[..., (images > 0).all(0)]  # of classes that are the answer in some images and not in others
    attracted = ((share[:, 0] - share[:, 1]).mean(1) * got.shape[2]).nan_to_num().tolist()
    fixed = keeps_couplings(traces[-1].layer.routing)
    return RoutingMeasure(len(held), tuple(layers), tuple(wrong.tolist()), changed, righted, spoiled, tuple(attracted),
                          fixed)


def received(trace: LayerTrace, coupling: Tensor) -> Tensor:
    """The share of all votes that each parent gets, (B, J). In a dense layer, votes are weighted by presence."""
    weight = presence(trace).flatten(1)[..., None] if coupling.ndim == 3 else 1.0
    votes = (weight * coupling.abs()).sum(1)[..., None].flatten(2).sum(2).double()
    return votes / votes.sum(1, keepdim=True).clamp(min=torch.finfo(votes.dtype).tiny)


def weighted(largest: Tensor, entropy: Tensor, presence: Tensor) -> Tensor:
    """Sums over children of their largest share times presence, entropy times presence, and presence, (3,)."""
    weight = presence.double()
    return torch.stack([(largest * weight).sum(), (entropy * weight).sum(), weight.sum()]).cpu()


def traced(model: Any, batch: Batch) -> list[LayerTrace]:
    """Every capsule layer of a model on a batch, from the lowest."""
    return trace_layers(model.capsules, *children(model.capsules, partial(forward, model, batch)))


def probe_due(step: int) -> bool:
    """At steps 1, 2, 5, 10, 20, 50, ..., as logits change most in early steps."""
    return step > 0 and str(step).rstrip("0") in ("1", "2", "5")


def has_routing_logits(model: Any) -> bool:
    """Whether the class layer is a dense one of dynamic routing, whose logits add up."""
    layers = getattr(getattr(model, "capsules", None), "layers", None)
    return layers is not None and layers[-1].name == "dynamic" and isinstance(layers[-1], DenseCapsules)


def probe_logits(model: Any, batch: Batch) -> list[float]:
    """`logit_change` on the first images of a batch. Weights, statistics and random numbers do not change."""
    first = batch._replace(**{name: x[:PROBED_IMAGES] for name, x in batch._asdict().items() if x is not None})
    with evaluating(model):
        return [float(f"{x:.6g}") for x in logit_change(model, first, PROBED_ITERATIONS).tolist()]


def logit_change(model: Any, batch: Batch, iterations: int) -> Tensor:
    """mean |b_ij after - b_ij before| = mean |u_j|i . v_j| of the class layer, for every iteration, (iterations,)."""
    with iterated(model.capsules, iterations):
        top = traced(model, batch)[-1]
    votes = cast(DenseCapsules, top.layer).votes(top.u)  # (B, I, J, D)
    changes = [torch.einsum("bijd,bjd->bij", votes, step.pose.to(votes.dtype)).abs().mean() for step in top.steps]
    return torch.stack(changes).cpu()
