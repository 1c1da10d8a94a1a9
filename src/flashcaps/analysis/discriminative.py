"""Discriminative routing: sparse coefficients, and capsules trained without a decoder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..training.checkpoint import load
from .drawings import first_of_each
from .figure import DoesNotApply, Drawn, Run
from .style import COLOURS, grid, look_of, styled, subplots, tiles

SMALL = 0.01  # share of the largest coefficient below which one counts as zero


@styled
def sparsity(run: Run) -> Drawn:
    """Sparsity of discriminative routing's coefficients, l1 against l2."""
    layer: Any = run.layer()
    if layer.name != "discriminative":
        raise DoesNotApply(f"coefficients of discriminative routing are needed; the class layer's is {layer.name}")
    found = {layer.routing.penalty: layer.coefficients}
    for other in others(run):
        top: Any = other.layer()
        if top.name == "discriminative":
            found.setdefault(top.routing.penalty, top.coefficients)
    fig, (left, right) = subplots(9, 3.7, 1, 2)
    data = {}
    for k, (penalty, b) in enumerate(found.items()):
        sizes, share = curve(b)
        small = 100 * float((sizes < SMALL).float().mean())
        data[penalty] = {"coefficients": b, "size": sizes, "share": share, "small": small}
        left.plot(sizes.clamp(min=1e-5), share, label=f"{penalty} penalty", linewidth=2, **look_of(k))
        right.stairs(*torch.histogram(b.flatten().float().cpu(), 60), linewidth=2, **look_of(k))
    left.set(xscale="log", xlim=(1e-5, 1.2), xlabel="|b| over the largest", ylabel="% of coefficients below")
    left.axvline(SMALL, color=COLOURS[3], linewidth=1, linestyle=":")
    right.set(xlabel="coefficient b", ylabel="how many", yscale="log")
    left.legend()
    grid(left, right)
    negative = {p: float((d["coefficients"] < 0).float().mean()) for p, d in data.items()}
    said = "; ".join(f"{p}: {d['small']:.1f} % are below {SMALL:.0%} of the largest, {negative[p]:.0%} are negative"
                     for p, d in data.items())
    i, j = layer.coefficients.shape
    return Drawn(data, fig, f"The {i:,} x {j} coefficients of {run.model.name}. {said}.")


def curve(b: Tensor) -> tuple[Tensor, Tensor]:
    """|b| over its largest, in order, and the share of coefficients at or below each, in percent."""
    sizes = (b.abs() / b.abs().max().clamp(min=1e-12)).flatten().float().cpu().sort().values
    return sizes, torch.arange(1, len(sizes) + 1) * (100 / len(sizes))


def others(run: Run) -> list[Run]:
    """This run with the capsule networks of the other runs whose folders are known."""
    mine = str(run.folder.resolve()) if run.folder else ""
    folders = [r["folder"] for r in run.records if "folder" in r]
    models: list[Any] = [load(f, device=run.device) for f in folders if str(Path(f).resolve()) != mine]
    return [replace(run, model=model) for model in models if hasattr(model, "capsules")]


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
    for other in others(run):
        top = other.layer()
        alike = (top.parents, top.out_dim, other.model.image) == (layer.parents, layer.out_dim, run.model.image)
        if alike and (other.model.decoder is None) != (run.model.decoder is None):
            return (run, other) if run.model.decoder is not None else (other, run)
    missing = "with" if run.model.decoder is None else "without"
    raise DoesNotApply(f"a run {missing} a decoder is needed, too, of the same capsules: give its folder with --beside")
