"""The routing of one image as JSON: couplings, flow, entropy and agreement per step, strongest lines, votes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..analysis.agreement import entropy
from ..nn.trace import LayerTrace, presence
from ..routing import Routed
from ..routing.math import length

LINES = 24  # per class and step
POINTS = 96  # votes per class
DIGITS = 5  # decimals in JSON


@dataclass(frozen=True)
class Seen:
    """One image in the class layer: votes (I, K, D), and the grid of its I children, (types, H, W)."""

    votes: Tensor
    top: LayerTrace
    grid: tuple[int, int, int]

    @property
    def cells(self) -> int:
        return self.grid[1] * self.grid[2]

    @property
    def there(self) -> Tensor:
        """The presence of each child, (I,)."""
        return presence(self.top)[0].flatten()

    def by_cell(self, x: Tensor) -> Tensor:
        """(I, ...) summed over types -> (cells, ...)."""
        return x.view(self.grid[0], self.cells, *x.shape[1:]).sum(0)


def plain(x: Tensor) -> Any:
    """Rounded numbers for JSON."""
    return x.double().round(decimals=DIGITS).tolist()


def steps(seen: Seen, activations: list[Tensor]) -> list[dict[str, Any]]:
    """Every routing iteration. activations: of the class capsules after each iteration, (K,)."""
    found = []
    for step, a in zip(seen.top.steps, activations, strict=True):
        c = step.coupling[0]  # (I, K)
        total = c.sum(1)
        found.append({
            "coupling": plain(seen.by_cell(c)),
            "flow": plain(seen.by_cell(c * seen.there[:, None])),
            "coupling_sum": plain(torch.stack([total.min(), total.max()])),
            "entropy": round(float(entropy(step.coupling)) * math.log(c.shape[1]), DIGITS) if c.shape[1] > 1 else 0.0,
            "agreement": plain(agreement(seen, c, step.pose[0])),
            "activation": plain(a),
        })  # fmt: skip
    return found


def agreement(seen: Seen, coupling: Tensor, pose: Tensor) -> Tensor:
    """The agreement of votes with the pose of each class, a mean weighted by |coupling| times presence. (K,)

    Their cosine, or exp(-|V - mu|^2 / 2 s^2) if parents are Gaussians, s^2 the mean squared distance of all votes from
    the mean of their class.
    """
    if seen.top.out.variance is None:
        near = torch.cosine_similarity(seen.votes, pose[None], dim=-1)  # (I, K)
    else:
        scale = (seen.votes - seen.votes.mean(0)).square().sum(-1).mean().clamp(min=1e-12)
        near = (-(seen.votes - pose).square().sum(-1) / (2 * scale)).exp()
    weight = coupling.abs() * seen.there[:, None]
    return (near * weight).sum(0) / weight.sum(0).clamp(min=1e-12)


def strongest(seen: Seen) -> list[list[list[dict[str, Any]]]]:
    """The strongest lines per step and class, by |coupling| times presence; weight is the coupling itself."""
    found = []
    for step in seen.top.steps:
        c = step.coupling[0]
        carried = (c * seen.there[:, None]).abs()
        best = carried.topk(min(LINES, len(c)), dim=0).indices.T  # (K, lines)
        weight = c.T.gather(1, best)
        found.append([
            [{"cell": i % seen.cells, "type": i // seen.cells, "weight": w}
             for i, w in zip(rows.tolist(), plain(weights), strict=True)]
            for rows, weights in zip(best, weight, strict=True)
        ])  # fmt: skip
    return found


def step_activations(model: Any, top: LayerTrace, as_shown: Any) -> list[Tensor]:
    """The activations of the class capsules after each iteration, (K,) each, through `as_shown`.

    A length, or a score that the head computes from poses, follows from the pose of a step. Other algorithms are run
    again with fewer iterations, each a prefix of the whole.
    """
    layer, gives = top.layer, top.layer.routing.output_activation
    if gives == "length":
        return [as_shown(length(step.pose)[0]) for step in top.steps]
    if layer.routing.stepwise:
        return [as_shown(model.head(Routed(step.pose, top.out.activation))[0]) for step in top.steps]
    own, found = layer.routing.iterations, []
    try:
        for t in range(len(top.steps)):
            layer.set_iterations(t + 1)
            found.append(as_shown(model.head(layer(top.u, top.activation))[0]))
    finally:
        layer.set_iterations(own)
    return found


def votes_in_plane(seen: Seen, classes: list[int]) -> list[dict[str, Any]]:
    """The votes of the children with the largest presence for some classes, on their first two principal axes.

    Coordinates are in units of the votes' standard deviation. aligned: |mean vote| / mean |vote|, 1 if all have one
    direction; spread: mean distance of a vote from the mean. Means are weighted by presence.
    """
    there = seen.there
    best = there.topk(min(POINTS, len(there))).indices
    votes, weight = seen.votes[best][:, classes], there[best]
    share = weight / weight.sum().clamp(min=1e-9)
    mean = torch.einsum("i,ijd->jd", share, votes)
    centred = (votes - mean).flatten(0, 1)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    if len(axes) < 2:  # poses of one number
        axes = torch.cat([axes, torch.zeros_like(axes)])[:2]
    unit = centred.square().mean().sqrt().clamp(min=1e-9)
    flat, middle = votes @ axes.T / unit, mean @ axes.T / unit
    found = []
    for n, k in enumerate(classes):
        cells = best % seen.cells
        points = [[*xy, w, c] for xy, w, c in zip(plain(flat[:, n]), plain(weight), cells.tolist(), strict=True)]
        lengths = (share * length(votes[:, n])).sum().clamp(min=1e-9)
        found.append({"class": k, "points": points, "pose": plain(middle[n]),
                      "aligned": plain(length(mean[n]) / lengths),
                      "spread": plain((share * length(votes[:, n] - mean[n])).sum())})  # fmt: skip
    return found
