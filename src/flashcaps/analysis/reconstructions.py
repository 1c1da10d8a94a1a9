"""What the decoder draws from one class capsule (dynamic, Fig. 3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .figure import Drawn, Run
from .style import INK, RED, figure, styled, tiles


@styled
def reconstructions(run: Run, right: int = 6, wrong: int = 2) -> Drawn:
    """Reconstructions with label, prediction and target, failures included (dynamic, Fig. 3).

    Failures come last, each twice: drawn from the capsule of the label, then from that of the prediction.
    """
    data = choose_examples(run, right, wrong)
    n = len(data["label"])
    fig = figure(max(0.92 * n, 4) + 0.6, 2.8)
    axis = fig.subplots()
    named = [[run.class_name(int(x)) for x in data[key]] for key in ("label", "prediction", "target")]
    named = [[f"{key} = {row[0]}", *row[1:]] for key, row in zip("lpr", named, strict=True)]
    titles = ["\n".join(column) for column in zip(*named, strict=True)]
    tiles(axis, torch.stack([data["image"], data["reconstruction"]]), titles, ["input", "drawn"])
    wrong_answer = data["label"] != data["prediction"]
    for text, bad in zip(axis.get_xticklabels(), wrong_answer, strict=True):
        text.set_color(RED if bad else INK)
    return Drawn(data, fig, caption(run, data))


def choose_examples(run: Run, right: int, wrong: int) -> dict[str, Any]:
    """Right answers of as many classes as there is room for, then the failures, with their reconstructions."""
    run.need_decoder()
    batch = run.single()
    answer, ok = run.output.scores.argmax(1), run.right
    some = first_of_each(batch.targets, ok)[:right]
    bad = (~ok).nonzero()[:, 0][:wrong].repeat_interleave(2)
    rows = torch.cat([some, bad])
    target = answer[rows].clone()
    target[len(some) :: 2] = batch.targets[bad[::2]]
    drawn = run.draw(run.poses[rows], target)
    error = (run.draw(run.poses, answer) - batch.inputs).square().flatten(1).sum(1)
    return {"image": batch.inputs[rows], "reconstruction": drawn, "label": batch.targets[rows],
            "prediction": answer[rows], "target": target, "error": error, "right": ok, "rows": rows}


def first_of_each(labels: Tensor, among: Tensor) -> Tensor:
    """The rows where `among` is True: the first of every class, then the second, ..."""
    rows = among.nonzero()[:, 0]
    mine = labels[rows]
    turn = torch.stack([(mine[:k] == mine[k]).sum() for k in range(len(mine))]) if len(mine) else mine
    return rows[(turn * (int(labels.max()) + 1) + mine).argsort(stable=True)]


def caption(run: Run, data: dict[str, Any]) -> str:
    ok, error = data["right"], data["error"]
    text = (f"{run.model.name} answers {int(ok.sum())} of {len(ok)} test images correctly. Above: the input. Below: "
            "what the decoder draws from one class capsule. l is the label, p the prediction, r the class drawn.")
    if ok.any():
        text += f" Input and drawing differ by {float(error[ok].mean()):.1f} (sum of squares) where the answer is right"
        text += f" and by {float(error[~ok].mean()):.1f} where it is wrong." if (~ok).any() else "."
    if (~ok).any():
        return text + " Failures are on the right, in red, drawn once as their label and once as the prediction."
    return text + " None of these images is a failure."
