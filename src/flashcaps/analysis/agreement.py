"""The same votes under every algorithm: entropy of couplings and agreement of votes, per iteration."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ..nn.trace import decided, sums
from ..routing import ROUTING, Routing, Sizes, Step
from ..routing.discriminative import Discriminative, discriminative_routing, discriminative_update
from ..routing.math import over_parents
from .figure import DoesNotApply, Drawn, Run
from .inside import class_votes
from .style import LINES, MARKERS, colour_of, grid, styled, subplots, whole_ticks

SAME = 0.02  # difference of entropies below which two lines coincide


@styled
def agreement(run: Run, iterations: int = 5, images: int = 16) -> Drawn:
    """Coupling entropy and agreement of votes per iteration, all algorithms on the same votes."""
    batch = run.first(images)
    votes, _ = class_votes(run, batch, 1)
    if votes.shape[2] < 2:
        raise DoesNotApply("at least two class capsules are needed; a child of a single one has no choice")
    data: dict[str, Any] = {}
    for name in ROUTING:
        steps = route(ROUTING[name](iterations=iterations), votes, batch.targets)
        data[name] = {"entropy": torch.stack([entropy(s.coupling) for s in steps]),
                      "agreement": torch.stack([agree(votes, s.coupling) for s in steps])}
    fig, (left, right) = subplots(9.5, 3.9, 1, 2)
    for k, (name, values) in enumerate(data.items()):
        look: dict[str, Any] = {"marker": MARKERS[k % len(MARKERS)], "linestyle": LINES[k % len(LINES)]}
        for axis, key in ((left, "entropy"), (right, "agreement")):
            axis.plot(range(1, len(values[key]) + 1), values[key].cpu(), color=colour_of(name), label=name,
                      markersize=max(9 - 1.4 * k, 2), **look)
    left.set(xlabel="iteration", ylabel="entropy of a child's coupling", title="1: undecided, 0: one parent")
    left.set_ylim(-0.03, 1.05)
    right.set(xlabel="iteration", ylabel="agreement of votes", title="mean cosine of vote and capsule")
    right.legend(fontsize=10)
    for axis in (left, right):
        whole_ticks(axis, iterations)
    grid(left, right)
    return Drawn(data, fig, _caption(run, data, iterations, len(batch.inputs)))


def _caption(run: Run, data: dict[str, Any], iterations: int, images: int) -> str:
    ends = {n: (float(v["entropy"][-1]), float(v["agreement"][0]), float(v["agreement"][-1])) for n, v in data.items()}
    said = "; ".join(f"{n} {e:.2f} and {a:.2f} (at first {first:.2f})" for n, (e, first, a) in ends.items())
    text = (f"The votes of {run.model.name} for its classes on {images} test images, routed by each algorithm with its "
            f"initial parameters. Entropy and agreement after {iterations} iterations: {said}. The couplings of "
            f"{min(ends, key=lambda n: ends[n][0])} are the most decided. Discriminative coefficients belong to the "
            "layer: for them an iteration is one step of gradient ascent.")
    for a, b in combinations(data, 2):
        x, y = data[a]["entropy"], data[b]["entropy"]
        if len(x) == len(y) and (x - y).abs().max() < SAME:
            text += f" {a} and {b} coincide."
    return text


def route(algorithm: Routing, votes: Tensor, labels: Tensor) -> tuple[Step, ...]:
    """Every iteration of an algorithm on votes (B, I, J, D), its learned tensors at their initial values."""
    if isinstance(algorithm, Discriminative):
        return _ascent(votes, labels, algorithm.iterations)
    b, i, j, d = votes.shape
    learned = {name: votes.new_full(spec.shape, spec.start) for name, spec in algorithm.learned(Sizes(i, j, d)).items()}
    present = {"probability": 1.0, "score": math.inf}.get(algorithm.input_activation or "")
    activation = None if present is None else votes.new_full((b, i), present)
    routed = algorithm.run(algorithm.function, votes, activation, learned, softmax=over_parents, record=True)
    return routed.history or ()


def _ascent(votes: Tensor, labels: Tensor, iterations: int) -> tuple[Step, ...]:
    """Coefficients (I, J) belong to the layer and follow the labels: an iteration is one step of their ascent."""
    i, j = votes.shape[1:3]
    b = votes.new_full((i, j), 1 / j)
    steps: tuple[Step, ...] = ()
    for _ in range(iterations):
        steps += discriminative_routing(votes, b, record=True).history or ()
        move = discriminative_update(b, votes, labels, rate=1.0, strength=0.0) - b
        b = b + move * (0.5 / j / move.abs().mean().clamp(min=1e-12))  # half the initial coefficient on average
    return steps


def entropy(coupling: Tensor) -> Tensor:
    """Mean over children of -sum_j p log p / log J, p the child's |coupling| normalised. (B, I, J) -> ()"""
    return decided(*sums(coupling), coupling.shape[-1])[1].mean()


def agree(votes: Tensor, coupling: Tensor) -> Tensor:
    """Mean over votes, weighted by coupling, of their cosine with the capsule sum_i c_ij V_ij they form -> ()."""
    capsule = torch.einsum("bij,bijd->bjd", coupling, votes)
    cosine = torch.cosine_similarity(votes, capsule[:, None], dim=-1)
    weight = coupling.abs()
    return (cosine * weight).sum() / weight.sum().clamp(min=1e-12)
