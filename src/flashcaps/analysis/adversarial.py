"""Adversarial robustness: accuracy under FGSM and PGD in an L-infinity ball, the same for capsules and CNN.

Images are floats in [0, 1] and stay in that range. An attack increases an objective. The loss that a model was trained
with would not be fair: the margin loss of a well answered image and its gradient are exactly 0, while a cross-entropy
never is 0, so capsules would look robust because the attack does not move. Attacks therefore increase the *gap*, the
highest wrong score minus the score of the true class. It is positive where the answer is wrong and never saturates, and
a sign step does not depend on its scale, whether scores are lengths, activations or logits. "cross_entropy" and
"trained" are for comparison. Gradients pass through every routing iteration. `flat` in the result is the share of
images whose gradient is exactly 0: where it is large, the accuracy under attack says little.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.base import Output
from ..nn.losses import multi_hot
from ..routing.checks import check_choice, check_number
from ..training.batches import Batch, spread
from ..training.evaluate import evaluating, is_right, wilson
from ..training.recipe import Loss
from ..training.results import commit, hardware, versions
from ..training.run_folder import variant
from ..training.step import criterion
from .figure import DoesNotApply, Drawn, Run, routed_by, take
from .style import COLOURS, MARKERS, grid, styled, subplots

Objective = Callable[[Tensor, Tensor], Tensor]  # scores (B, K), targets (B,) -> what an attack increases, (B,) or ()
OBJECTIVES = ("gap", "cross_entropy", "trained")
DIGITS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # epsilons for images of one channel
PICTURES = (0.0, 1 / 255, 2 / 255, 4 / 255, 8 / 255, 16 / 255)


def gap(scores: Tensor, targets: Tensor) -> Tensor:
    """(B,): max over k != t of s_k, minus s_t. Positive where the answer is wrong."""
    true = multi_hot(targets, scores.shape[1], torch.bool)
    return scores.masked_fill(true, -math.inf).amax(1) - scores.gather(1, targets[:, None])[:, 0]


def objective(name: str, loss: Loss | None = None) -> Objective:
    """An objective by name; "trained" needs the recipe's loss, of which the reconstruction is left out."""
    check_choice("loss", name, OBJECTIVES)
    if name == "gap":
        return gap
    if name == "cross_entropy":
        return lambda scores, targets: F.cross_entropy(scores, targets, reduction="none")
    if loss is None:
        raise ValueError("loss: 'trained' needs a checkpoint that names its recipe; take 'gap' or 'cross_entropy'")
    spec = replace(loss, reconstruction=0.0)
    margin = torch.tensor(0.9)  # the last margin of the spread loss

    def trained(scores: Tensor, targets: Tensor) -> Tensor:
        mean = criterion(Output(scores, None), Batch(scores, targets), spec, margin.to(scores.device))
        return mean * len(scores)  # a sum, so that the gradient of an image does not depend on the batch size

    return trained


def climb(model: nn.Module, images: Tensor, targets: Tensor, loss: Objective = gap) -> tuple[Tensor, Tensor]:
    """(gradient of the loss by the pixels, scores (B, K)), both detached."""
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        scores = model(x).scores.float()
        (grad,) = torch.autograd.grad(loss(scores, targets).sum(), x)
    return grad.nan_to_num(0.0), scores.detach()  # NaN would spoil the image and count as a success


def fgsm(model: nn.Module, images: Tensor, targets: Tensor, epsilon: float, *, loss: Objective = gap) -> Tensor:
    """x + epsilon sign(grad), clipped to [0, 1] (Goodfellow, Shlens, Szegedy 2015). images (B, C, H, W)."""
    check(images, targets, epsilon)
    grad, _ = climb(model, images, targets, loss)
    return (images + epsilon * grad.sign()).clamp(0, 1)


def pgd(
    model: nn.Module, images: Tensor, targets: Tensor, epsilon: float, *, steps: int = 20, step: float | None = None,
    seed: int = 0, loss: Objective = gap,
) -> Tensor:  # fmt: skip
    """x <- clip(x + step sign(grad)), `steps` times, from a random point in the ball (Madry et al. 2018).

    step: 2.5 epsilon / steps by default, which reaches every corner. clip: to epsilon around the image and to [0, 1].
    Returns for each image the first point that fools the model, which may be the image itself, or else the last point.
    Never waits for the device.
    """
    check(images, targets, epsilon)
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    stride = 2.5 * epsilon / steps if step is None else step
    low, high = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=1)
    generator = torch.Generator(images.device).manual_seed(seed)
    noise = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
    x, found = low + noise * (high - low), images
    with torch.no_grad():
        fooled = ~is_right(model(images).scores, targets, "top1")
    for _ in range(steps):
        grad, scores = climb(model, x, targets, loss)
        now = ~is_right(scores, targets, "top1") & ~fooled
        found, fooled = torch.where(now[:, None, None, None], x, found), fooled | now
        x = torch.clamp(x + stride * grad.sign(), low, high)
    return torch.where(fooled[:, None, None, None], found, x)


def check(images: Tensor, targets: Tensor, epsilon: float) -> None:
    check_number("epsilon", epsilon, 0)
    if not images.is_floating_point() or images.ndim != 4:
        raise ValueError(f"images: expected floats (B, C, H, W) in [0, 1], got {images.dtype} {tuple(images.shape)}")
    if targets.ndim != 1:
        raise DoesNotApply("images with one class each are needed for an attack; these hold several")


@dataclass(frozen=True)
class Plan:
    """The measurement: FGSM, and PGD of `steps` steps, at each epsilon. loss: one of OBJECTIVES."""

    epsilons: tuple[float, ...] = ()
    steps: int = 20
    loss: str = "gap"
    seed: int = 0
    batch: int = 250

    def at(self, channels: int) -> tuple[float, ...]:
        return self.epsilons or (DIGITS if channels == 1 else PICTURES)


QUICK = Plan(steps=10, batch=50)  # for a figure of a model without stored results


def robustness(model: nn.Module, batch: Batch, plan: Plan = Plan(), trained: Loss | None = None) -> dict[str, Any]:
    """Accuracy in percent under each attack, with its 95 % interval; counted on the device and read once.

    epsilon 0 is the accuracy on clean images. flat: percent of images whose gradient is exactly 0.
    """
    images, targets = batch.inputs, batch.targets
    check(images, targets, 0.0)
    loss, epsilons = objective(plan.loss, trained), plan.at(images.shape[1])
    counts = torch.zeros(1 + 2 * len(epsilons), dtype=torch.int64, device=images.device)
    parts = zip(images.split(plan.batch), targets.split(plan.batch), strict=True)
    with evaluating(model):
        for k, (x, t) in enumerate(parts):
            grad, scores = climb(model, x, t, loss)
            attacked = [(x + e * grad.sign()).clamp(0, 1) for e in epsilons]
            attacked += [pgd(model, x, t, e, steps=plan.steps, seed=plan.seed + k, loss=loss) if e else x
                         for e in epsilons]
            clean = is_right(scores, t, "top1")
            kept = [(clean & is_right(model(found).scores, t, "top1")).sum() for found in attacked]
            counts += torch.stack([(grad.flatten(1) == 0).all(1).sum(), *kept])
    flat, *right = counts.tolist()
    n, half = len(images), len(epsilons)
    rows = [{"attack": kind, "epsilon": round(e, 6), "accuracy": round(100 * r / n, 4),
             "interval": [round(100 * x, 4) for x in wilson(r, n)]}
            for kind, part in (("fgsm", right[:half]), ("pgd", right[half:]))
            for e, r in zip(epsilons, part, strict=True)]
    return {"examples": n, "loss": plan.loss, "steps": plan.steps, "start": f"uniform in the ball, seed {plan.seed}",
            "step": "2.5 epsilon / steps", "flat": round(100 * flat / n, 4), "rows": rows}


def make_record(run: Run, plan: Plan, command: str = "") -> dict[str, Any]:
    """The content of results/robustness/RECIPE/VARIANT-SEED.json for a checkpoint."""
    recipe, began = run.recipe, time.monotonic()
    if recipe is None:
        raise DoesNotApply("a run of a recipe is needed; this checkpoint names none")
    run.images()
    found = robustness(run.model, run.single(), plan, recipe.loss)
    about = {"recipe": recipe.name, "variant": variant(recipe), "overrides": list(recipe.overrides),
             "seed": recipe.train.seed, "data": recipe.data.name, "model": run.model.name,
             "parameters": run.parameters, "trained_with": recipe.loss.kind}
    return about | found | {"wall_s": round(time.monotonic() - began, 2), "hardware": hardware(run.device),
                            "versions": versions(), "commit": commit(), "command": command}


@styled
def adversarial(run: Run) -> Drawn:
    """Accuracy under attack against its size, FGSM and PGD, of this model and of all measured on the same data."""
    run.images()
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}  # (recipe, variant) -> records of all seeds
    for record in run.robustness:
        if run.recipe and record["data"] == run.recipe.data.name:
            lines.setdefault((record["recipe"], record["variant"]), []).append(record)
    if run.recipe is None or (run.recipe.name, variant(run.recipe)) not in lines:
        few = take(run.single(), spread(len(run.single().inputs), QUICK.batch))
        own = {"model": run.model.name, **robustness(run.model, few, QUICK, run.recipe.loss if run.recipe else None)}
        lines = {(run.name, "default"): [own], **lines}
    fig, axes = subplots(9.4, 4.2, 1, 2, sharey=True)
    curves: dict[str, Any] = {}
    for k, ((name, kind), records) in enumerate(lines.items()):
        label = name if kind == "default" else f"{name} {kind}"
        curves[label] = {attack: mean_curve(records, attack) for attack in ("fgsm", "pgd")}
        colour, style = COLOURS[k % len(COLOURS)], "-" if routed_by(records[0]["model"], {})[0] else "--"
        for axis, points in zip(axes, curves[label].values(), strict=True):
            axis.plot(list(points), list(points.values()), style, color=colour, marker=MARKERS[k % len(MARKERS)],
                      label=label)
    for axis, title in zip(axes, ("FGSM", "PGD"), strict=True):
        axis.set(title=title, xlabel="largest change of a pixel, of 1", ylim=(0, 101))
    grid(*axes)
    axes[0].set_ylabel("accuracy, %")
    axes[0].legend(fontsize=9, loc="lower left")
    return Drawn({"curves": curves}, fig, " ".join(_said(label, lines[key]) for label, key in
                                                   zip(curves, lines, strict=True)))


def mean_curve(records: list[dict[str, Any]], attack: str) -> dict[float, float]:
    """epsilon -> mean accuracy over seeds."""
    points: dict[float, list[float]] = {}
    for row in (row for record in records for row in record["rows"] if row["attack"] == attack):
        points.setdefault(row["epsilon"], []).append(row["accuracy"])
    return {e: statistics.fmean(v) for e, v in sorted(points.items())}


def _said(label: str, records: list[dict[str, Any]]) -> str:
    clean, *_ = mean_curve(records, "fgsm").values()
    ends = {attack: list(mean_curve(records, attack).items())[-1] for attack in ("fgsm", "pgd")}
    under = " and ".join(f"{value:.1f} % under {attack.upper()} of {e:g}" for attack, (e, value) in ends.items())
    flat = statistics.fmean(r["flat"] for r in records)
    seeds = f", {len(records)} seeds" if len(records) > 1 else ""
    return (f"{label} ({records[0]['examples']} images{seeds}): {clean:.1f} % clean, {under}"
            + (f"; {flat:.1f} % of its gradients are exactly 0" if flat else "") + ".")
