"""The same votes under all five algorithms: how decided couplings are and how well votes agree, per iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..routing import Step
from ..routing.attention import attention_routing
from ..routing.discriminative import discriminative_routing, discriminative_update
from ..routing.dynamic import dynamic_routing
from ..routing.em import em_routing, inverse_temperature
from ..routing.heinsen import heinsen_routing
from .figure import DoesNotApply, Drawn, Run, take
from .inside import class_votes
from .style import ALGORITHM, MARKERS, figure, grid, styled, whole_ticks

Steps = list[Step]


def _dynamic(votes: Tensor, labels: Tensor, iterations: int) -> Steps:
    return list(dynamic_routing(votes, iterations=iterations, record=True).history or ())


def _em(votes: Tensor, labels: Tensor, iterations: int) -> Steps:
    b, i, j, _ = votes.shape
    zero = votes.new_zeros(j)
    routed = em_routing(votes, votes.new_ones(b, i), beta_u=zero, beta_a=zero, iterations=iterations, record=True,
                        inverse_temperature=inverse_temperature(iterations))
    return list(routed.history or ())


def _attention(votes: Tensor, labels: Tensor, iterations: int) -> Steps:
    pose: Tensor | None = None
    steps: Steps = []
    for _ in range(iterations):
        routed = attention_routing(votes, pose, scale=votes.shape[-1] ** -0.5, record=True)
        pose, steps = routed.pose, steps + list(routed.history or ())
    return steps


def _heinsen(votes: Tensor, labels: Tensor, iterations: int) -> Steps:
    b, i, j, _ = votes.shape
    routed = heinsen_routing(votes, votes.new_full((b, i), math.inf), beta_use=votes.new_full((j,), 1 / i),
                             beta_ignore=votes.new_full((j,), 1 / i), iterations=iterations, record=True)
    return list(routed.history or ())


def _discriminative(votes: Tensor, labels: Tensor, iterations: int) -> Steps:
    """Coefficients belong to the layer and follow labels: an iteration is one step of their ascent."""
    i, j = votes.shape[1:3]
    b = votes.new_full((i, j), 1 / j)
    steps: Steps = []
    for _ in range(iterations):
        steps += discriminative_routing(votes, b, record=True).history or ()
        move = discriminative_update(b, votes, labels, rate=1.0, strength=0.0) - b
        b = b + move * (0.5 / j / move.abs().mean().clamp(min=1e-12))  # a step of half the coefficients' start
    return steps


DASHES: dict[str, Any] = {"attention": "--", "heinsen": (0, (2, 5))}  # over lines they nearly coincide with
ALGORITHMS: dict[str, Callable[[Tensor, Tensor, int], Steps]] = {
    "dynamic": _dynamic,
    "em": _em,
    "attention": _attention,
    "heinsen": _heinsen,
    "discriminative": _discriminative,
}


@styled
def agreement(run: Run, iterations: int = 5, images: int = 16) -> Drawn:
    """Coupling entropy and agreement of votes per iteration, all five algorithms on the same votes."""
    batch = run.examples()
    batch = take(batch, torch.arange(min(images, len(batch.inputs))))
    votes, _ = class_votes(run, batch, 1)
    if votes.shape[2] < 2:
        raise DoesNotApply("at least two class capsules are needed; a child of a single one has no choice")
    data = {}
    for name, route in ALGORITHMS.items():
        steps = route(votes, batch.targets, iterations)
        data[name] = {"entropy": torch.stack([entropy(s.coupling) for s in steps]),
                      "agreement": torch.stack([agree(votes, s.coupling) for s in steps])}
    fig = figure(9.5, 3.9)
    left, right = fig.subplots(1, 2)
    for k, (name, values) in enumerate(data.items()):
        for axis, key in ((left, "entropy"), (right, "agreement")):
            axis.plot(range(1, iterations + 1), values[key].cpu(), marker=MARKERS[k], color=ALGORITHM[name], label=name,
                      linestyle=DASHES.get(name, "-"), markersize=9 - 1.4 * k)
    left.set(xlabel="iteration", ylabel="entropy of a child's coupling", title="1: undecided, 0: one parent")
    left.set_ylim(-0.03, 1.05)
    right.set(xlabel="iteration", ylabel="agreement of votes", title="mean cosine of vote and capsule")
    right.legend(fontsize=10)
    for axis in (left, right):
        whole_ticks(axis, iterations)
        grid(axis)
    ends = {n: (float(v["entropy"][-1]), float(v["agreement"][0]), float(v["agreement"][-1])) for n, v in data.items()}
    said = "; ".join(f"{n} {e:.2f} and {a:.2f} (at first {first:.2f})" for n, (e, first, a) in ends.items())
    most = min(ends, key=lambda n: ends[n][0])
    text = (f"The votes of {run.model.name} for its classes, on {len(batch.inputs)} test images, routed by each "
            f"algorithm with neutral parameters. Entropy and agreement after {iterations} iterations: {said}. "
            f"{most} decides most. Discriminative coefficients belong to the layer: for it an iteration is one step of "
            "their ascent.")
    if (data["em"]["entropy"] - data["heinsen"]["entropy"]).abs().max() < 0.02:
        text += " em and heinsen coincide: before anything is learned, both fit the same Gaussians to the votes."
    return Drawn(data, fig, text)


def entropy(coupling: Tensor) -> Tensor:
    """Mean over children of -sum_j p log p / log J, p the child's |coupling| normalised. (B, I, J) -> ()"""
    p = coupling.abs()
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-12)
    return -(p * p.clamp(min=1e-12).log()).sum(-1).mean() / math.log(p.shape[-1])


def agree(votes: Tensor, coupling: Tensor) -> Tensor:
    """Mean over votes, weighted by coupling, of their cosine with the capsule sum_i c_ij V_ij they make -> ()."""
    capsule = torch.einsum("bij,bijd->bjd", coupling, votes)
    cosine = torch.cosine_similarity(votes, capsule[:, None], dim=-1)
    weight = coupling.abs()
    return (cosine * weight).sum() / weight.sum().clamp(min=1e-12)
