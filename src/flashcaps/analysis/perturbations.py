"""What the dimensions of a class capsule mean: change one and reconstruct (dynamic, Fig. 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .figure import DoesNotApply, Drawn, Run
from .measures import MEASURES, correlation, measure
from .style import figure, styled, tiles

OFFSETS = tuple(round(-0.25 + 0.05 * k, 2) for k in range(11))  # the paper's
ROWS = 16  # dimensions a figure has room for


@styled
def perturbations(run: Run, label: int | None = None) -> Drawn:
    """Dimension perturbations, one row per pose dimension, -0.25 to 0.25 by 0.05 (dynamic, Fig. 4).

    label: the class whose example with the largest score is perturbed; None is the class with the largest of all.
    """
    row, k = clearest(run, label)
    pictures = perturb(run, row[None], k)[0]  # (D, 11, C, H, W)
    change = effect(pictures)
    dims = shown(change)
    fig = figure(7.4, 0.6 * len(dims) + 0.5)
    axis = fig.subplots()
    tiles(axis, pictures[dims], [f"{x:+.2f}" if x else "0" for x in OFFSETS], [str(d) for d in dims])
    axis.tick_params(labelsize=10)
    axis.set_ylabel("pose dimension")
    best, least = int(change.argmax()), int(change.argmin())
    text = (f"The capsule of {run.class_name(k)}, one of its {len(change)} dimensions changed at a time. Between the "
            f"ends of a row, dimension {best} changes the drawing most, by {float(change[best]):.3f} per pixel on "
            f"average, and dimension {least} least, by {float(change[least]):.3f}.")
    if len(dims) < len(change):
        text += f" Only the {len(dims)} that change most are shown."
    return Drawn({"pictures": pictures, "offsets": torch.tensor(OFFSETS), "effect": change, "row": int(row),
                  "label": k}, fig, text)


@styled
def dimensions(run: Run, label: int | None = None, examples: int = 32) -> Drawn:
    """What each dimension encodes: stroke thickness, skew, width, height or area of the drawing.

    Left: correlation of a dimension with a measure of the drawing, over test images of one class. Right: the effect of
    changing that dimension alone from -0.25 to 0.25, in standard deviations of the measure over these images.
    """
    _, k = clearest(run, label)
    rows = ((run.single().targets == k) & run.right).nonzero()[:, 0][:examples]
    if len(rows) < 3:
        raise DoesNotApply(f"at least 3 correctly answered images of a class are needed; there are {len(rows)}")
    pictures = perturb(run, rows, k)  # (N, D, 11, C, H, W)
    r, moved = natural(run.poses[rows, k], pictures[:, 0, len(OFFSETS) // 2]), response(pictures)
    dims = shown(effect(pictures).mean(0))
    fig = figure(9.6, 0.34 * len(dims) + 1.5)
    left, right = fig.subplots(1, 2, sharey=True)
    reach = float(moved.abs().max().clamp(min=1e-6))
    _heat(left, r[dims], 1.0)
    _heat(right, moved[dims], reach)
    left.set(xlabel="measured on the drawing", title="correlation over images")
    right.set(xlabel="measured on the drawing", title="change, in standard deviations")
    left.set_yticks(range(len(dims)), [str(d) for d in dims])
    left.set_ylabel("pose dimension")
    most = [int(x) for x in moved.abs().argmax(0)]
    said = [f"{name} by dimension {d} ({float(moved[d, m]):+.1f} s.d., r = {float(r[d, m]):+.2f})"
            for m, (name, d) in enumerate(zip(MEASURES, most, strict=True))]
    text = (f"Capsule {run.class_name(k)} over {len(rows)} test images. Left: correlation of each dimension with "
            "measures of the drawing. Right: how far changing it alone by 0.5 moves the measure. Largest effects: "
            f"{'; '.join(said)}.")
    return Drawn({"correlation": r, "response": moved, "measures": MEASURES, "rows": rows, "label": k}, fig, text)


def _heat(axis: Any, values: Tensor, top: float) -> None:
    axis.imshow(values.cpu().numpy(), cmap="PuOr", vmin=-top, vmax=top, aspect="auto")
    axis.set_xticks(range(len(MEASURES)), MEASURES, fontsize=10.5)
    for i, row in enumerate(values.tolist()):
        for j, x in enumerate(row):
            strong = abs(x) > 0.7 * top
            axis.text(j, i, f"{x:+.2f}", ha="center", va="center", fontsize=9.5,
                      color="#fefefe" if strong else "#111111", fontweight="bold" if strong else "normal")


def clearest(run: Run, label: int | None = None) -> tuple[Tensor, int]:
    """(row, class): the correctly answered example with the largest score, of class `label` or of any."""
    run.need_decoder()
    targets = run.single().targets
    among = run.right if label is None else run.right & (targets == label)
    if not among.any():
        raise DoesNotApply("a correctly answered example is needed; there is none among the test examples")
    scores = run.output.scores.gather(1, targets[:, None])[:, 0]
    row = torch.where(among, scores, scores.new_tensor(-torch.inf)).argmax()
    return row, int(targets[row])


def perturb(run: Run, rows: Tensor, label: int) -> Tensor:
    """Drawings with `offsets` added to one dimension of class capsule `label` at a time, (N, D, offsets, C, H, W)."""
    pose = run.poses[rows]  # (N, J, D)
    n, _, d = pose.shape
    offsets = pose.new_tensor(OFFSETS)
    changed = pose[:, None, None].repeat(1, d, len(offsets), 1, 1)
    for k in range(d):
        changed[:, k, :, label, k] += offsets
    flat = changed.flatten(0, 2)
    drawn = run.draw(flat, torch.full((len(flat),), label, device=flat.device))
    return drawn.view(n, d, len(offsets), *drawn.shape[1:])


def effect(pictures: Tensor) -> Tensor:
    """Mean difference of a pixel between the two ends of a row: (..., D, offsets, C, H, W) -> (..., D)."""
    return (pictures[..., -1, :, :, :] - pictures[..., 0, :, :, :]).abs().mean((-3, -2, -1))


def shown(change: Tensor) -> list[int]:
    """All dimensions, or those that change most where there are too many, in order."""
    return sorted(change.topk(min(ROWS, len(change))).indices.tolist())


def natural(pose: Tensor, pictures: Tensor) -> Tensor:
    """Correlation over examples of each dimension and measure: pose (N, D), their drawings (N, C, H, W) -> (D, M)."""
    values = measure(pictures.mean(1))
    return torch.stack([correlation(pose.T, values[name].expand(pose.shape[1], -1)) for name in MEASURES], 1)


def response(pictures: Tensor) -> Tensor:
    """Mean change of each measure between the ends of a row over its deviation between examples, (D, M)."""
    values = measure(pictures.mean(3))  # (N, D, offsets)
    middle = pictures.shape[2] // 2
    spread = {name: values[name][:, 0, middle].std().clamp(min=1e-6) for name in MEASURES}
    return torch.stack([(values[m][..., -1] - values[m][..., 0]).mean(0) / spread[m] for m in MEASURES], 1)
