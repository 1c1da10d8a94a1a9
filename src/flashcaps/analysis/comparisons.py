"""Bars of stored results: ablations of attention, DiverseMultiMNIST, familiar and novel viewpoints."""

import statistics
from dataclasses import replace
from typing import Any

from ..training.recipe import Recipe, list_recipes, read_recipe
from .figure import DoesNotApply, Drawn, Run
from .records import Facts, Rows, accuracy, known, length, missing_sentence, not_measured, trained_alike
from .style import BLUE, COLOURS, INK, MUTED, RED, grid, styled, subplots

ABLATIONS = {"attention": "", "A: no LayerNorm": "model.options.norm=false", "B: sequential": "model.concurrent=false",
             "C: activations": "model.options.activation=true"}  # bar -> its override
HELD_OUT = {"azimuth": "held_out_azimuths", "elevation": "held_out_elevations"}


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
    fig, (axis,) = subplots(10, 3.8)
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
    return replace(recipe.train, seed=0), recipe.schedule, recipe.optimiser, recipe.augment, recipe.loss


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
    measured = [(record, f) for record, f in known(run) if f.recipe.data.name == "diverse_multimnist"
                and f.changed == read_recipe(f.recipe.name).model.overrides]
    for record, f in trained_alike(measured, length, lambda f: f.recipe.name):
        row = rows.setdefault(record["recipe"], {"values": [], "parameters": record["parameters"],
                                                 "paper": f.recipe.claim.value})
        row["values"].append(accuracy(record))
    absent = {name: name for name in list_recipes() if "_diverse" in name and name not in rows}
    if not rows:
        raise DoesNotApply(f"measured runs on DiverseMultiMNIST are needed, in results/runs or --beside; "
                           f"{not_measured(absent)}")
    names = sorted(rows, key=lambda n: statistics.fmean(rows[n]["values"]))
    fig, (axis,) = subplots(8, 0.6 * len(names) + 1.3)
    ours = [statistics.fmean(rows[n]["values"]) for n in names]
    axis.barh(names, ours, color=COLOURS[0], height=0.6)
    for k, (name, value) in enumerate(zip(names, ours, strict=True)):
        inside = value > 50  # a shorter bar has no room for the text
        axis.text(1.5 if inside else value + 1.5, k, f"{value:.2f} %, {rows[name]['parameters']:,} parameters",
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


@styled
def novel_viewpoints(run: Run) -> Drawn:
    """Test error on viewpoints seen in training and on novel viewpoints, model by model."""
    rows = [(record, f) for record, f in known(run) if held_out(f) and familiar_error(record) is not None]
    if run.recipe is not None:
        rows = [row for row in rows if row[1].recipe.data.name == run.recipe.data.name] or rows
    errors = {what: table_of([row for row in rows if held_out(row[1]) == what]) for what in HELD_OUT}
    measured = {name for table in errors.values() for name in table}
    absent = {name: name for name in list_recipes() if "_views_" in name and name not in measured}
    shown = {what: table for what, table in errors.items() if table}
    if not shown:
        raise DoesNotApply("measured runs with viewpoints held out are needed, in results/runs or --beside; "
                           f"{not_measured(absent)}")
    fig, axes = subplots(9.4, 4.2, 1, len(shown), sharey=True)
    for axis, (what, table) in zip(axes, shown.items(), strict=True):
        for k, (part, colour) in enumerate((("familiar", BLUE), ("novel", RED))):
            x = [j + (k - 0.5) * 0.4 for j in range(len(table))]
            bars = axis.bar(x, [row[part] for row in table.values()], 0.38, color=colour, label=f"{part} {what}s")
            axis.bar_label(bars, fmt="%.1f", fontsize=10, padding=2, color=INK)
        axis.set_xticks(range(len(table)), [name.removesuffix(f"_views_{what}") for name in table])
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        grid(axis)
    axes[0].set_ylabel("test error, %")
    text = " ".join(_said(what, table) for what, table in shown.items())
    return Drawn(errors, fig, text + missing_sentence(absent))


def held_out(f: Facts) -> str:
    """Which viewpoints were held out; "" for none, for both, and for a model other than its recipe's."""
    kinds = [what for what, option in HELD_OUT.items() if f.recipe.data.options.get(option)]
    return kinds[0] if len(kinds) == 1 and not f.recipe.model.overrides.keys() - {"image"} else ""


def familiar_error(record: dict[str, Any]) -> float | None:
    """The last validation error of the curve, which belongs to the weights that were tested."""
    points = [point["error"] for point in record["curve"] if point["split"] == "validation"]
    return points[-1] if points else None


def table_of(rows: Rows) -> dict[str, dict[str, Any]]:
    """recipe -> mean errors over seeds, of runs with one schedule; batch and rates are each model's own."""
    table: dict[str, dict[str, Any]] = {}
    same = trained_alike(rows, schedule, lambda f: f.recipe.name)
    for name in sorted({f.recipe.name for _, f in same}):
        records = [record for record, f in same if f.recipe.name == name]
        familiar = statistics.fmean(familiar_error(record) or 0.0 for record in records)
        novel = statistics.fmean(100 - accuracy(record) for record in records)
        table[name] = {"familiar": familiar, "novel": novel, "seeds": len(records),
                       "parameters": records[0]["parameters"]}
    return table


def schedule(recipe: Recipe) -> tuple[Any, ...]:
    spec = recipe.train
    return recipe.data.name, spec.epochs, spec.steps, spec.stop_error, spec.select, recipe.schedule.kind


def _said(what: str, table: dict[str, dict[str, Any]]) -> str:
    rows = sorted(table.items(), key=lambda row: row[1]["novel"])
    each = ", ".join(f"{name.removesuffix(f'_views_{what}')} {row['familiar']:.1f} -> {row['novel']:.1f} % "
                     f"({row['parameters'] / 1e6:.2f}M parameters)" for name, row in rows)
    return f"From familiar to novel {what}s, the lowest error on novel ones first: {each}."
