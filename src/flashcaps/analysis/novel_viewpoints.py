"""Errors on familiar and on novel viewpoints of the same toys (em, smallNORB)."""

from __future__ import annotations

import statistics
from typing import Any

from ..training.recipe import Recipe, list_recipes
from .figure import DoesNotApply, Drawn, Run
from .records import Facts, Rows, accuracy, known, missing_sentence, not_measured, trained_alike
from .style import BLUE, INK, RED, figure, grid, styled

HELD_OUT = {"azimuth": "held_out_azimuths", "elevation": "held_out_elevations"}


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
    fig = figure(9.4, 4.2)
    axes = fig.subplots(1, len(shown), sharey=True, squeeze=False)[0]
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
