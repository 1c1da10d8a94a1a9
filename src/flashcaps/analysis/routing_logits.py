"""Does routing settle? The change of its logits per iteration, over training (dynamic, Fig. A.1).

A run logs points of it in its metrics (training/routing_measure.py), early steps close together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..training.routing_measure import PROBED_IMAGES, PROBED_ITERATIONS, logit_change
from .figure import DoesNotApply, Drawn, Run
from .open_run import untrained
from .style import COLOURS, MARKERS, grid, styled, subplots, whole_ticks


@styled
def routing_logits(run: Run, iterations: int = PROBED_ITERATIONS) -> Drawn:
    """Change of the routing logits by each iteration, over training, on a log scale (dynamic, Fig. A.1)."""
    if run.layer().name != "dynamic":
        raise DoesNotApply(f"logits b_ij that add up are dynamic routing's; the class layer's is {run.layer().name}")
    batch = run.first(PROBED_IMAGES)
    probed = {m["step"]: torch.tensor(m["change"]) for m in run.metrics if m["kind"] == "routing"}
    probed = {step: change for step, change in probed.items() if len(change) == iterations}
    at = int(getattr(run.model, "config", {}).get("step", 0))
    measured = {0: logit_change(untrained(run), batch, iterations)} if run.recipe is not None else {}
    last = measured[at] = logit_change(run.model, batch, iterations)
    # weights that are kept may be averages, which lag behind what was probed: one or the other makes a curve
    table = {s: x for s, x in measured.items() if s == 0} | probed if probed else measured
    fig, (left, right) = subplots(9, 3.6, 1, 2, sharey=True)
    steps = list(table)
    for t in range(iterations):
        values = [float(table[s][t]) for s in steps]
        left.plot(steps, values, marker=MARKERS[t % len(MARKERS)], markersize=4, color=COLOURS[t % len(COLOURS)],
                  label=f"{t + 1}")
    left.set(xlabel="training step", ylabel="mean change of a logit", yscale="log", title="over training")
    if len(steps) > 3:
        left.set_xscale("symlog", linthresh=1)
        decades = [10**k for k in range(len(str(steps[-1])))]
        left.set_xticks([0, *decades], ["0", *(f"{s:,}" for s in decades)])
        left.set_xlim(-0.15, 1.4 * steps[-1])
    left.legend(title="iteration", ncols=2)
    right.plot(range(1, iterations + 1), last, "o-", color=COLOURS[0], label="this model")
    if len(measured) > 1:
        right.plot(range(1, iterations + 1), measured[0], "s--", color=COLOURS[1], label="before training")
    right.set(xlabel="iteration", title=f"at step {at:,}")
    right.legend()
    whole_ticks(right, iterations)
    grid(left, right)
    own = run.layer().routing.iterations
    text = (f"After training, iteration 1 changes a logit by {float(last[0]):.2g} on average and iteration "
            f"{iterations} by {float(last[-1]):.2g}, over {len(batch.inputs)} test images; the model routes "
            f"{own} times. {_trend(last)} {_points(steps, len(probed))}")
    return Drawn({"steps": steps, "change": torch.stack([table[s] for s in steps])}, fig, text)


def _points(steps: list[int], probed: int) -> str:
    if len(steps) <= 6:
        return f"Points over training: {', '.join(f'step {s:,}' for s in steps)}."
    return (f"{len(steps)} points over training, from step {steps[0]:,} to {steps[-1]:,}, {probed} of them on training "
            "images.")  # fmt: skip


def _trend(change: Tensor) -> str:
    ratio = float((change[-1] / change[0].clamp(min=1e-30)) ** (1 / max(len(change) - 1, 1)))
    if ratio < 0.95:
        return f"Each iteration changes {ratio:.2f} times what the one before did: routing settles."
    return f"Each iteration changes {ratio:.2f} times what the one before did: within these, routing does not settle."
