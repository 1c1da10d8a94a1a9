"""Two overlapping digits, reconstructed separately (dynamic, Fig. 5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .figure import DoesNotApply, Drawn, Run
from .style import figure, styled, tiles

TINTS = ((1.0, 0.45, 0.0), (0.0, 0.55, 1.0))  # orange and blue add up to white


@styled
def segmentation(run: Run, right: int = 4, neither: int = 2, wrong: int = 1) -> Drawn:
    """Overlapping digits segmented in two colours, with both kinds of failure (dynamic, Fig. 5).

    The failures: a drawing of a class that is neither label nor prediction (*), and wrong answers, drawn from the
    labels and from the prediction.
    """
    data = choose_pairs(run, right, neither, wrong)
    n = len(data["rows"])
    fig = figure(max(1.1 * n, 4) + 0.6, 2.9)
    axis = fig.subplots()
    mark = {"right": "", "neither": "*", "label": "", "prediction": "P"}
    titles = [f"{mark[kind]}R {_pair(run, r)}\nL {_pair(run, l)}"
              for kind, r, l in zip(data["kinds"], data["drawn"], data["labels"], strict=True)]
    grey = data["image"].mean(1, keepdim=True).expand(-1, 3, -1, -1)
    tiles(axis, torch.stack([grey, data["overlay"]]), titles, ["input", "drawn"])
    axis.tick_params(labelsize=11)
    ok = run.right
    text = (f"Both digits are right in {int(ok.sum())} of {len(ok)} test images. The two drawings overlap in orange "
            "and blue, and are white where both have ink. L: labels. R: the classes drawn.")
    strength = data["strength"]
    if strength["neither"] is not None:
        text += (f" In columns with * the second class is neither in the image nor in the answer: such drawings have "
                 f"{100 * strength['neither'] / max(strength['right'], 1e-9):.0f} % of the ink of a present class.")
    if "prediction" in data["kinds"]:
        text += " On the right: a failure, drawn from its labels and then from the prediction (P)."
    return Drawn(data, fig, text)


def _pair(run: Run, classes: Tensor) -> str:
    return "(" + ", ".join(run.class_name(int(k)) for k in classes) + ")"


def choose_pairs(run: Run, right: int, neither: int, wrong: int) -> dict[str, Any]:
    """Chooses examples and two classes of each, and draws them."""
    run.need_decoder()
    batch = run.examples()
    if batch.targets.ndim == 1 or batch.chosen is None or batch.chosen.ndim == 1:
        raise DoesNotApply("images with two digits each are needed, such as MultiMNIST; these hold one class each")
    labels = batch.chosen
    two, ok = (labels >= 0).all(1), run.right
    answer = run.output.scores.topk(2, 1).indices.sort(1).values
    good, bad = (two & ok).nonzero()[:, 0], (two & ~ok).nonzero()[:, 0][:wrong]
    absent = absent_class(run.output.scores, labels)
    plain, starred = good[:right], good[right : right + neither]
    starred = starred[absent[starred] >= 0]
    swapped = torch.stack([labels[:, 0], absent], 1)
    rows = torch.cat([plain, starred, bad, bad])
    drawn = torch.cat([labels[plain], swapped[starred], labels[bad], answer[bad]])
    kinds = ["right"] * len(plain) + ["neither"] * len(starred) + ["label"] * len(bad) + ["prediction"] * len(bad)
    pictures = run.draw(run.poses[rows], drawn)  # (N, 2, C, H, W): each of two classes on its own
    both = good[absent[good] >= 0]
    ink = run.draw(run.poses[both], torch.stack([labels[both, 1], absent[both]], 1)).flatten(2).sum(2).mean(0)
    strength = {"right": float(ink[0]) if len(both) else 0.0, "neither": float(ink[1]) if len(both) else None}
    return {"image": batch.inputs[rows], "pictures": pictures, "overlay": overlay(pictures), "labels": labels[rows],
            "drawn": drawn, "kinds": kinds, "rows": rows, "strength": strength}


def absent_class(scores: Tensor, labels: Tensor) -> Tensor:
    """(N,): the class with the largest score of those neither in the image nor among the best two; -1 for none."""
    out = scores.scatter(1, torch.where(labels < 0, labels[:, :1], labels), -torch.inf)
    best = out.scatter(1, scores.topk(2, 1).indices, -torch.inf).max(1)
    return torch.where(best.values.isinf(), -1, best.indices)


def overlay(pictures: Tensor) -> Tensor:
    """(N, 2, C, H, W) -> (N, 3, H, W): the first in orange, the second in blue, added and clipped."""
    grey = pictures.mean(2)
    tints = grey.new_tensor(TINTS)
    return torch.einsum("nkhw,kc->nchw", grey, tints).clamp(max=1)
