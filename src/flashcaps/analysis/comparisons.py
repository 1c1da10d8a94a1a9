"""Bars of measured results: attention's ablations, and models on DiverseMultiMNIST."""

from __future__ import annotations

import statistics
from typing import Any

from ..training.recipe import Recipe, list_recipes
from .figure import DoesNotApply, Drawn, Run
from .records import Facts, accuracy, known, length, missing_sentence, not_measured, trained_alike
from .style import COLOURS, INK, MUTED, figure, grid, numbers, styled

ABLATIONS = {"attention": "", "A: no LayerNorm": "model.options.norm=false", "B: sequential": "model.concurrent=false",
             "C: activations": "model.options.activation=true"}  # bar -> its override


@styled
def ablation(run: Run) -> Drawn:
    """Attention routing without LayerNorm, sequential, and with activations (attention, Fig. 4)."""
    table: dict[str, dict[int, list[float]]] = {}
    rows = [(record, f) for record, f in known(run) if ablated(f)]
    for record, f in trained_alike(rows, training, lambda f: (ablated(f), f.iterations)):
        table.setdefault(ablated(f), {}).setdefault(f.iterations, []).append(accuracy(record))
    absent = {k: f"attention_simple_cifar10 {o}".strip() for k, o in ABLATIONS.items() if k not in table}
    if not set(table) - {"attention"}:
        raise DoesNotApply(f"measured ablations are needed, in results/runs or --beside; {not_measured(absent)}")
    kinds = [k for k in ABLATIONS if k in table]
    counts = sorted({t for points in table.values() for t in points})
    fig = figure(10, 3.8)
    axis = fig.subplots()
    width = 0.86 / len(kinds)
    means = {k: {t: statistics.fmean(v) for t, v in table[k].items()} for k in kinds}
    for j, kind in enumerate(kinds):
        x = [counts.index(t) + (j - (len(kinds) - 1) / 2) * width for t in sorted(table[kind])]
        bars = axis.bar(x, [means[kind][t] for t in sorted(table[kind])], width * 0.92, color=COLOURS[j], label=kind)
        axis.bar_label(bars, fmt="%.1f", fontsize=10, padding=2, color=INK)
    axis.set_xticks(range(len(counts)), [str(t) for t in counts])
    axis.set(xlabel="routing iterations", ylabel="accuracy, %")
    axis.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
    grid(axis)
    best = {k: max(v.values()) for k, v in means.items()}
    text = "Best accuracy over iterations: " + ", ".join(f"{k} {v:.2f} %" for k, v in best.items()) + "."
    return Drawn({"accuracy": means}, fig, text + missing_sentence(absent))


def training(recipe: Recipe) -> tuple[Any, ...]:
    """Everything a run is trained with, except its seed."""
    return *length(recipe), recipe.optimiser, recipe.augment, recipe.loss


def ablated(f: Facts) -> str:
    """The bar that a run of attention routing belongs to; "" for none."""
    if f.algorithm != "attention" or "simple_cifar10" not in f.recipe.model.name or "cifar100" in f.recipe.model.name:
        return ""
    options = f.changed.get("options", {})
    changes = {"norm": options.get("norm") is False, "concurrent": f.changed.get("concurrent") is False,
               "activation": options.get("activation") is True}
    if sum(changes.values()) > 1 or set(f.changed) - {"options", "concurrent"}:
        return ""
    return list(ABLATIONS)[1 + list(changes.values()).index(True)] if any(changes.values()) else "attention"


@styled
def diverse(run: Run) -> Drawn:
    """Models on DiverseMultiMNIST: accuracy and parameters beside the paper's (attention, Fig. 5)."""
    rows: dict[str, dict[str, Any]] = {}
    measured = [(record, f) for record, f in known(run)
                if f.recipe.data.name == "diverse_multimnist" and not f.changed]
    for record, f in trained_alike(measured, length, lambda f: f.recipe.name):
        row = rows.setdefault(record["recipe"], {"values": [], "parameters": record["parameters"],
                                                 "paper": f.recipe.claim.value})
        row["values"].append(accuracy(record))
    absent = {name: name for name in list_recipes() if "_diverse" in name and name not in rows}
    if not rows:
        raise DoesNotApply(f"measured runs on DiverseMultiMNIST are needed, in results/runs or --beside; "
                           f"{not_measured(absent)}")
    names = sorted(rows, key=lambda n: statistics.fmean(rows[n]["values"]))
    fig = figure(8, 0.6 * len(names) + 1.3)
    axis = fig.subplots()
    ours = [statistics.fmean(rows[n]["values"]) for n in names]
    axis.barh(names, ours, color=COLOURS[0], height=0.6)
    for k, (name, value) in enumerate(zip(names, ours, strict=True)):
        inside = value > 50  # a shorter bar has no room for the text
        axis.text(1.5 if inside else value + 1.5, k, f"{value:.2f} %, {numbers(rows[name]['parameters'])} parameters",
                  va="center", color="#fefefe" if inside else INK, fontsize=10.5)
    paper = [(rows[n]["paper"], k) for k, n in enumerate(names) if rows[n]["paper"] is not None]
    if paper:
        axis.plot(*zip(*paper, strict=True), "|", color=INK, markersize=22, markeredgewidth=2.5, label="the paper's")
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axis.set(xlabel="images with all digits right, %", xlim=(0, 100))
    axis.tick_params(axis="y", length=0, color=MUTED)
    said = ", ".join(f"{n} {v:.2f} %" for n, v in zip(names[::-1], ours[::-1], strict=True))
    text = f"Test images with all digits right and no others: {said}."
    return Drawn({"rows": rows}, fig, text + missing_sentence(absent))
