"""Drawings of the decoder: reconstructions, perturbed dimensions, overlapping digits (dynamic, Fig. 3, 4, 5), those of
capsules trained without it (discriminative, Fig. 2), and measures of what is drawn."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .figure import DoesNotApply, Drawn, Run
from .style import INK, RED, styled, subplots, tiles

OFFSETS = tuple(round(-0.25 + 0.05 * k, 2) for k in range(11))  # the paper's
ROWS = 16  # dimensions a figure has room for
MEASURES = ("thickness", "skew", "width", "height", "area")
TINTS = ((1.0, 0.45, 0.0), (0.0, 0.55, 1.0))  # orange and blue add up to white


@styled
def reconstructions(run: Run, right: int = 6, wrong: int = 2) -> Drawn:
    """Reconstructions with label, prediction and target, failures included (dynamic, Fig. 3).

    Right answers of as many classes as there is room for come first. Each failure is shown twice: drawn from the
    capsule of the label, then from the capsule of the prediction.
    """
    run.need_decoder()
    batch = run.single()
    answer, ok = run.output.scores.argmax(1), run.right
    some = first_of_each(batch.targets, ok)[:right]
    bad = (~ok).nonzero()[:, 0][:wrong].repeat_interleave(2)
    rows = torch.cat([some, bad])
    target = answer[rows].clone()
    target[len(some) :: 2] = batch.targets[bad[::2]]
    data = {"image": batch.inputs[rows], "reconstruction": run.draw(run.poses[rows], target),
            "label": batch.targets[rows], "prediction": answer[rows], "target": target, "right": ok, "rows": rows,
            "error": (run.draw(run.poses, answer) - batch.inputs).square().flatten(1).sum(1)}
    fig, (axis,) = subplots(max(0.92 * len(rows), 4) + 0.6, 2.8)
    named = [[run.class_name(int(x)) for x in data[key]] for key in ("label", "prediction", "target")]
    named = [[f"{key} = {row[0]}", *row[1:]] for key, row in zip("lpr", named, strict=True)]
    titles = ["\n".join(column) for column in zip(*named, strict=True)]
    tiles(axis, torch.stack([data["image"], data["reconstruction"]]), titles, ["input", "drawn"])
    wrong_answer = data["label"] != data["prediction"]
    for text, bad in zip(axis.get_xticklabels(), wrong_answer, strict=True):
        text.set_color(RED if bad else INK)
    text = (f"{run.model.name} answers {int(ok.sum())} of {len(ok)} test images correctly. Above: the input. Below: "
            "what the decoder draws from one class capsule. l is the label, p the prediction, r the class drawn.")
    error = data["error"]
    if ok.any():
        text += f" Input and drawing differ by {float(error[ok].mean()):.1f} (sum of squares) where the answer is right"
        text += f" and by {float(error[~ok].mean()):.1f} where it is wrong." if not ok.all() else "."
    failures = " Failures are on the right, in red, drawn once as their label and once as the prediction."
    return Drawn(data, fig, text + (" None of these images is a failure." if ok.all() else failures))


def first_of_each(labels: Tensor, among: Tensor) -> Tensor:
    """The rows where `among` is True: the first of every class, then the second, ..."""
    rows = among.nonzero()[:, 0]
    mine = labels[rows]
    turn = (mine[:, None] == mine).tril(-1).sum(1)  # how many of its class come before
    return rows[(turn * (int(labels.max()) + 1) + mine).argsort(stable=True)]


@styled
def borrowed_decoder(run: Run, count: int = 10) -> Drawn:
    """Reconstructions from capsules that were trained without the decoder (discriminative, Fig. 2)."""
    batch = run.single()
    with_one, without = pair(run)
    ok = with_one.right & without.right
    rows = first_of_each(batch.targets, ok)[:count]
    if not len(rows):
        raise DoesNotApply("an image that both models answer correctly is needed; there is none among the examples")
    own, fed = (with_one.draw(r.poses[rows], batch.targets[rows]) for r in (with_one, without))
    fig, (axis,) = subplots(0.92 * len(rows) + 1.5, 3.6)
    names = [run.class_name(int(k)) for k in batch.targets[rows]]
    tiles(axis, torch.stack([batch.inputs[rows], own, fed]), names, ["input", "own", "borrowed"])
    every = ok.nonzero()[:, 0]
    drawn = (with_one.draw(r.poses[every], batch.targets[every]) for r in (with_one, without))
    errors = [float((x - batch.inputs[every]).square().flatten(1).sum(1).mean()) for x in drawn]
    text = (f"Middle: the decoder of {with_one.model.name} fed with the capsules it was trained with "
            f"({errors[0]:.1f}, sum of squares). Below: fed with those of {without.model.name} trained without any "
            f"decoder ({errors[1]:.1f}), which answers {int(without.right.sum())} of {len(ok)} images correctly.")
    return Drawn({"own": own, "borrowed": fed, "errors": errors, "rows": rows}, fig, text)


def pair(run: Run) -> tuple[Run, Run]:
    """(a run with a decoder, one without) whose class capsules have the same shape; this run is one of them."""
    layer = run.layer()
    for other in run.others():
        top = other.layer()
        alike = (top.parents, top.out_dim, other.model.image) == (layer.parents, layer.out_dim, run.model.image)
        if alike and (other.model.decoder is None) != (run.model.decoder is None):
            return (run, other) if run.model.decoder is not None else (other, run)
    missing = "with" if run.model.decoder is None else "without"
    raise DoesNotApply(f"a run {missing} a decoder is needed, too, of the same capsules: give its folder with --beside")


@styled
def perturbations(run: Run) -> Drawn:
    """Dimension perturbations, one row per pose dimension, -0.25 to 0.25 by 0.05 (dynamic, Fig. 4)."""
    row, k = clearest(run)
    pictures = perturb(run, row[None], k)[0]  # (D, 11, C, H, W)
    change = effect(pictures)
    dims = shown(change)
    fig, (axis,) = subplots(7.4, 0.6 * len(dims) + 0.5)
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
def dimensions(run: Run, examples: int = 32) -> Drawn:
    """What each dimension encodes: stroke thickness, skew, width, height or area of the drawing.

    Left: correlation of a dimension with a measure of the drawing, over test images of one class. Right: the effect of
    changing that dimension alone from -0.25 to 0.25, in standard deviations of the measure over these images.
    """
    _, k = clearest(run)
    rows = ((run.single().targets == k) & run.right).nonzero()[:, 0][:examples]
    if len(rows) < 3:
        raise DoesNotApply(f"at least 3 correctly answered images of a class are needed; there are {len(rows)}")
    pictures = perturb(run, rows, k)  # (N, D, 11, C, H, W)
    pose, own = run.poses[rows, k].T, measure(pictures[:, 0, len(OFFSETS) // 2].mean(1))  # (D, N), each (N,)
    r, moved = torch.stack([correlation(pose, own[name].expand_as(pose)) for name in MEASURES], 1), response(pictures)
    dims = shown(effect(pictures).mean(0))
    fig, (left, right) = subplots(9.6, 0.34 * len(dims) + 1.5, 1, 2, sharey=True)
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


def clearest(run: Run) -> tuple[Tensor, int]:
    """(row, class): the correctly answered example with the largest score."""
    run.need_decoder()
    targets = run.single().targets
    if not run.right.any():
        raise DoesNotApply("a correctly answered example is needed; there is none among the test examples")
    scores = run.output.scores.gather(1, targets[:, None])[:, 0]
    row = torch.where(run.right, scores, scores.new_tensor(-torch.inf)).argmax()
    return row, int(targets[row])


def perturb(run: Run, rows: Tensor, label: int, offsets: Sequence[float] = OFFSETS) -> Tensor:
    """Drawings with `offsets` added to one dimension of class capsule `label` at a time, (N, D, offsets, C, H, W)."""
    pose = run.poses[rows]  # (N, J, D)
    n, _, d = pose.shape
    changed = pose[:, None, None].repeat(1, d, len(offsets), 1, 1)
    for k in range(d):
        changed[:, k, :, label, k] += pose.new_tensor(offsets)
    flat = changed.flatten(0, 2)
    return run.draw(flat, flat.new_full((len(flat),), label, dtype=torch.long)).unflatten(0, (n, d, len(offsets)))


def effect(pictures: Tensor) -> Tensor:
    """Mean difference of a pixel between the two ends of a row: (..., D, offsets, C, H, W) -> (..., D)."""
    return (pictures[..., -1, :, :, :] - pictures[..., 0, :, :, :]).abs().mean((-3, -2, -1))


def shown(change: Tensor) -> list[int]:
    """All dimensions, or those that change most where there are too many, in order."""
    return sorted(change.topk(min(ROWS, len(change))).indices.tolist())


def response(pictures: Tensor) -> Tensor:
    """Mean change of each measure between the ends of a row over its deviation between examples, (D, M)."""
    values = measure(pictures.mean(3))  # (N, D, offsets)
    middle = pictures.shape[2] // 2
    spread = {name: values[name][:, 0, middle].std().clamp(min=1e-6) for name in MEASURES}
    return torch.stack([(values[m][..., -1] - values[m][..., 0]).mean(0) / spread[m] for m in MEASURES], 1)


def measure(pictures: Tensor) -> dict[str, Tensor]:
    """pictures (..., H, W) >= 0, ink on 0 -> each measure (...), in pixels; skew is a slope.

    A stroke of width w and length L has an area of w L, and its edges (the total variation) are 2 L long: thickness is
    2 area / edges. Width and height are those of the box with the same standard deviation. Skew: how many pixels the
    ink moves right per pixel up.
    """
    h, w = pictures.shape[-2:]
    y = torch.arange(h, dtype=pictures.dtype, device=pictures.device)
    x = torch.arange(w, dtype=pictures.dtype, device=pictures.device)
    area = pictures.sum((-2, -1))
    ink = area.clamp(min=1e-6)
    rows, columns = pictures.sum(-1), pictures.sum(-2)
    dy = y - ((rows * y).sum(-1) / ink)[..., None]
    dx = x - ((columns * x).sum(-1) / ink)[..., None]
    vertical = (rows * dy.square()).sum(-1) / ink
    horizontal = (columns * dx.square()).sum(-1) / ink
    shear = (pictures * dy[..., :, None] * dx[..., None, :]).sum((-2, -1)) / ink
    framed = F.pad(pictures, (1, 1, 1, 1))
    down, across = framed.diff(dim=-2)[..., :-1], framed.diff(dim=-1)[..., :-1, :]
    edges = (down.square() + across.square()).sqrt().sum((-2, -1)).clamp(min=1e-6)
    return {
        "thickness": 2 * area / edges,
        "skew": -shear / vertical.clamp(min=1e-6),
        "width": (12 * horizontal).sqrt(),
        "height": (12 * vertical).sqrt(),
        "area": area,
    }


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's r along the last axis; 0 where either does not vary."""
    found = torch.cosine_similarity(x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True), dim=-1)
    varies = (x.amax(-1) > x.amin(-1)) & (y.amax(-1) > y.amin(-1))  # a constant differs from its mean by rounding
    return found.where(varies, 0)


@styled
def segmentation(run: Run, right: int = 4, neither: int = 2, wrong: int = 1) -> Drawn:
    """Overlapping digits segmented in two colours, with both kinds of failure (dynamic, Fig. 5).

    The failures: a drawing of a class that is neither label nor prediction (*), and wrong answers, drawn from the
    labels and from the prediction.
    """
    data = choose_pairs(run, right, neither, wrong)
    fig, (axis,) = subplots(max(1.1 * len(data["rows"]), 4) + 0.6, 2.9)
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
