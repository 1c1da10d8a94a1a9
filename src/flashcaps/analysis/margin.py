"""The margin loss as a function of length, and this model's lengths (em slides; dynamic, Eq. 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..nn.losses import margin_loss, multi_hot
from .figure import DoesNotApply, Drawn, Run
from .style import BLUE, MUTED, RED, grid, styled, subplots

BINS = 40


@styled
def margin(run: Run) -> Drawn:
    """Margin loss as a function of length for present and absent classes, and this model's lengths."""
    if run.layer().routing.output_activation != "length":
        raise DoesNotApply(f"lengths are needed; the scores of {run.layer().name} routing are not lengths of capsules")
    x = torch.linspace(0, 1, 201)
    present, absent = loss_curve(x, True), loss_curve(x, False)
    there = multi_hot(run.examples().targets, run.model.classes) > 0.5
    scores = run.output.scores
    lengths = {"present": scores[there], "absent": scores[~there]}
    fig, (top, bottom) = subplots(7.5, 4.6, 2, 1, sharex=True, height_ratios=(1.3, 1))
    top.plot(x, present, color=BLUE, label="class is present")
    top.plot(x, absent, color=RED, linestyle="--", label="class is absent")
    top.set(ylabel="margin loss", ylim=(-0.02, 0.85))
    top.legend()
    for name, colour, step in (("present", BLUE, "-"), ("absent", RED, "--")):
        values = lengths[name].cpu()
        if len(values):
            share, edges = torch.histogram(values, BINS, range=(0, 1))
            bottom.stairs(100 * share / len(values), edges, color=colour, linestyle=step, linewidth=2)
    bottom.set(xlabel="length of the class capsule", ylabel="% of capsules")
    grid(top, bottom)
    for axis in (top, bottom):
        for edge in (0.1, 0.9):
            axis.axvline(edge, color=MUTED, linewidth=1, linestyle=":")
    free = {"present": lengths["present"] >= 0.9, "absent": lengths["absent"] <= 0.1}
    parts = [f"{100 * float(ok.float().mean()):.1f} % of the {name} classes' lengths are "
             f"{'0.9 or more' if name == 'present' else '0.1 or less'}" for name, ok in free.items() if len(ok)]
    means = ", ".join(f"{float(v.mean()):.2f} if {name}" for name, v in lengths.items() if len(v))
    text = (f"Above: the loss of a length. Below: this model's lengths over {len(scores)} test images; the mean is "
            f"{means}. Only lengths between the dotted lines have a loss: {' and '.join(parts)}, which have none.")
    return Drawn({"length": x, "present": present, "absent": absent, "lengths": lengths}, fig, text)


def loss_curve(lengths: Tensor, present: bool) -> Tensor:
    """The loss of one capsule of each length, (N,) -> (N,)."""
    targets = torch.full((1, 1), float(present))
    return torch.stack([margin_loss(x.view(1, 1), targets) for x in lengths])
