"""Encoder and decoder with shapes and parameter counts, from the model itself (em slides; dynamic, Fig. 1, 2)."""

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..routing import Routed
from ..training.batches import Batch
from ..training.evaluate import forward
from .figure import Drawn, Run, take
from .style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, styled, subplots

ARROW = {"arrowstyle": "-|>", "color": MUTED, "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
COLOUR = {"input": MUTED, "layer": BLUE, "capsules": ORANGE, "head": GREEN, "decoder": PURPLE}
PER_ROW = 5


class Stage(NamedTuple):
    """One box: its kind and name, the output shape for one example, its parameters."""

    kind: str
    name: str
    shape: tuple[int, ...]
    parameters: int
    detail: str = ""


@styled
def architecture(run: Run) -> Drawn:
    """Encoder and decoder with shapes and parameter counts, drawn from the model."""
    found = stages(run)
    rows = [found[k : k + PER_ROW] for k in range(0, len(found), PER_ROW)]
    fig, (axis,) = subplots(10, 1.75 * len(rows) + 0.2)
    axis.set(xlim=(0, PER_ROW), ylim=(-len(rows), 0))
    axis.axis("off")
    for r, row in enumerate(rows):
        for c, stage in enumerate(row):
            _box(axis, c + 0.5, -r - 0.5, stage)
            if c:
                axis.annotate("", (c + 0.06, -r - 0.5), (c - 0.06, -r - 0.5), arrowprops=ARROW)
        if r:
            line = ((PER_ROW - 0.5, -r + 0.16), (PER_ROW - 0.5, -r), (0.5, -r))
            axis.plot(*zip(*line, strict=True), color=MUTED, linewidth=1.5)
            axis.annotate("", (0.5, -r - 0.15), (0.5, -r + 0.02), arrowprops=ARROW)
    total = run.parameters
    largest = max(found, key=lambda s: s.parameters)
    capsules = sum(s.parameters for s in found if s.kind == "capsules")
    drawn = sum(s.parameters for s in found if s.kind == "decoder")
    text = (f"{run.model.name} has {total:,} parameters. The largest part is {largest.name} with "
            f"{largest.parameters:,} ({100 * largest.parameters / total:.0f} %)")
    text += f"; capsules have {100 * capsules / total:.0f} %" if capsules else "; it has no capsules"
    text += f" and the decoder {100 * drawn / total:.0f} %." if drawn else ", and it has no decoder."
    text += " Shapes are of one example: capsules are types x rows x columns x pose, or capsules x pose."
    return Drawn({"stages": found, "parameters": total}, fig, text)


def _box(axis: Any, x: float, y: float, stage: Stage) -> None:
    from matplotlib.patches import FancyBboxPatch

    axis.add_patch(FancyBboxPatch((x - 0.4, y - 0.3), 0.8, 0.6, "round,pad=0.03", facecolor=PAPER,
                                  edgecolor=COLOUR[stage.kind], linewidth=2))
    shape = " x ".join(map(str, stage.shape))
    axis.text(x, y + 0.2, stage.name, ha="center", va="center", fontsize=11, fontweight="bold")
    axis.text(x, y + 0.03, shape, ha="center", va="center", fontsize=11, color=INK)
    axis.text(x, y - 0.13, stage.detail, ha="center", va="center", fontsize=9, color=MUTED)
    if stage.parameters:
        colour = COLOUR[stage.kind]
        axis.text(x, y - 0.27, f"{stage.parameters:,}", ha="center", va="center", fontsize=10, color=colour)


def stages(run: Run) -> list[Stage]:
    """Input, backbone, primary capsules, capsule layers, head and decoder, with the shapes of one example.

    The example is the run's first, or zeros if it has none.
    """
    model: Any = run.model
    if run.batch is not None:
        batch = take(run.batch, torch.tensor([0]))
    else:
        shape = model.image or (8, *model.reads)
        batch = Batch(torch.zeros(1, *shape, device=run.device), torch.zeros(1, dtype=torch.long))
    own = sum(p.numel() for p in model.parameters(recurse=False))
    found = [Stage("input", "input", tuple(batch.inputs.shape[1:]), own, "image" if model.image else "hidden states")]
    parts = [(n, m) for n, m in model.named_children() if n not in ("capsules", "head", "decoder") and m is not None]
    shapes: dict[nn.Module, tuple[int, ...]] = {}
    leaves = [leaf for name, part in parts for leaf in _leaves(name, part)]
    with ExitStack() as hooks:
        for _, m in leaves:
            hooks.enter_context(m.register_forward_hook(lambda m, _, out: shapes.__setitem__(m, _shape(out))))
        scores = forward(model, batch).scores
    for name, m in leaves:
        kind = "capsules" if name == "primary" else "layer"
        found.append(Stage(kind, name, shapes[m], count(m), _detail(m)))
    if hasattr(model, "capsules"):
        for k, layer in enumerate(run.trace(batch)):
            detail = f"{layer.layer.name}, {len(layer.steps)} iteration{'s' * (len(layer.steps) > 1)}"
            found.append(Stage("capsules", f"capsules {k + 1}", _shape(layer.out), count(layer.layer), detail))
        found.append(Stage("head", "scores", tuple(scores.shape[1:]), count(model.head), type(model.head).__name__))
    if model.decoder is not None:
        linear = [m for m in model.decoder.modules() if isinstance(m, nn.Linear)]
        for k, m in enumerate(linear):
            last = m is linear[-1]
            shape = tuple(model.image) if last else (m.out_features,)
            found.append(Stage("decoder", f"decoder {k + 1}", shape, count(m), "sigmoid" if last else "ReLU"))
    return found


def _leaves(name: str, part: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts that get a box: those of an nn.Sequential that have parameters, or any other module as a whole."""
    if not isinstance(part, nn.Sequential):
        return [(name, part)] if count(part) else []
    inner = [m for m in part if count(m)]
    return [(f"{name} {k + 1}" if len(inner) > 1 else name, m) for k, m in enumerate(inner)]


def _detail(m: nn.Module) -> str:
    convs = [x for x in m.modules() if isinstance(x, nn.Conv2d)]
    if len(convs) > 3:
        return f"{len(convs)} convolutions"
    if convs:
        kernel, stride = convs[0].kernel_size[0], convs[0].stride[0]
        return f"{kernel} x {kernel}" + (f", stride {stride}" if stride > 1 else "")
    return type(m).__name__


def _shape(out: Tensor | Routed) -> tuple[int, ...]:
    return tuple((out.pose if isinstance(out, Routed) else out).shape[1:])


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
