"""Distances of votes to a class capsule's mean, iteration by iteration (em slides, Fig. 2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .figure import DoesNotApply, Drawn, Run, take
from .inside import class_votes
from .style import BLUE, INK, RED, figure, styled

BINS = 24


@styled
def vote_distances(run: Run, classes: int = 3) -> Drawn:
    """Histograms of vote distances to each class capsule's mean, weighted by assignment (em slides, Fig. 2).

    A correctly and a wrongly answered image; the label first, then the classes with the largest scores.
    """
    batch = run.examples()
    kinds = {"right": run.right, "wrong": ~run.right}
    rows = {kind: int(ok.nonzero()[0]) for kind, ok in kinds.items() if ok.any()}
    data: dict[str, Any] = {"rows": rows}
    for kind, row in rows.items():
        votes, top = class_votes(run, take(batch, torch.tensor([row])))
        if votes.shape[1] < 2:
            raise DoesNotApply("votes of several children are needed; the class layer has a single one")
        weights = torch.stack([step.coupling[0] for step in top.steps]).abs()  # discriminative's may be negative
        data[kind] = {"distance": weighted_distances(votes[0], weights), "weight": weights,
                      "classes": ranked(run, row, classes), "label": labels(run, row)}
    fig = _draw(run, data, rows)
    said = " ".join(f"{kind.capitalize()} answer: {_shrink(run, data[kind])}" for kind in rows)
    text = f"Votes near the mean agree. {said} The label's classes come first, then those with the largest scores."
    return Drawn(data, fig, text)


def weighted_distances(votes: Tensor, weights: Tensor) -> Tensor:
    """||V_ij - mean_j||, mean_j = sum_i c_ij V_ij / sum_i c_ij: votes (I, J, D), weights (T, I, J) -> (T, I, J)."""
    total = weights.sum(1).clamp(min=1e-12)
    mean = torch.einsum("tij,ijd->tjd", weights, votes) / total[..., None]
    return (votes[None] - mean[:, None]).norm(dim=-1)


def spread_of(distance: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean distance of each class's votes, (T, I, J) -> (T, J)."""
    return (distance * weight).sum(1) / weight.sum(1).clamp(min=1e-12)


def labels(run: Run, row: int) -> list[int]:
    target = run.examples().targets[row]
    return [int(target)] if target.ndim == 0 else (target > 0.5).nonzero()[:, 0].tolist()


def ranked(run: Run, row: int, count: int) -> list[int]:
    """The labels, then the classes with the largest scores."""
    order = run.output.scores[row].argsort(descending=True).tolist()
    mine = labels(run, row)
    return (mine + [k for k in order if k not in mine])[:count]


def _draw(run: Run, data: dict[str, Any], rows: dict[str, int]) -> Any:
    steps = len(data[next(iter(rows))]["weight"])
    wide = max(len(data[kind]["classes"]) for kind in rows)
    fig = figure(2.6 * wide + 0.6, (1.15 * steps + 0.7) * len(rows) + 0.4)
    parts = fig.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, kind in zip(parts, rows, strict=True):
        distance, weight, classes = (data[kind][key] for key in ("distance", "weight", "classes"))
        axes = part.subplots(steps, len(classes), squeeze=False, sharex=True, sharey=True)
        top = float(distance[:, :, classes].quantile(0.98)) if distance.numel() < 10**7 else float(distance.max())
        colour = BLUE if kind == "right" else RED
        for t in range(steps):
            for axis, k in zip(axes[t], classes, strict=True):
                counts, edges = torch.histogram(distance[t, :, k].cpu(), BINS, range=(0, top),
                                                weight=weight[t, :, k].cpu())
                axis.stairs(counts, edges, fill=True, color=colour)
                axis.axvline(float(spread_of(distance, weight)[t, k]), color=INK, linewidth=1)
            axes[t, 0].set_ylabel(f"iteration {t + 1}", fontsize=10)
        for axis, k in zip(axes[0], classes, strict=True):
            mark = " (label)" if k in data[kind]["label"] else ""
            axis.set_title(f"{run.class_name(k)}{mark}, {float(run.output.scores[rows[kind], k]):.2f}", fontsize=11)
        part.supxlabel("distance of a vote to the mean", fontsize=11)
        part.suptitle(f"{kind} answer", fontsize=12, fontweight="bold")
    return fig


def _shrink(run: Run, data: dict[str, Any]) -> str:
    spread, mass = spread_of(data["distance"], data["weight"]), data["weight"].sum(1)
    k = data["classes"][0]
    share = mass / mass.sum(1, keepdim=True).clamp(min=1e-12)
    return (f"votes for {run.class_name(k)} lie {float(spread[0, k]):.2f} from their mean in the first iteration and "
            f"{float(spread[-1, k]):.2f} in the last, with {100 * float(share[0, k]):.0f} % and then "
            f"{100 * float(share[-1, k]):.0f} % of all assignment.")
