"""Finished runs beside each other, from run folders and stored results: curves of loss, error and accuracy; bars of
attention's ablations, of DiverseMultiMNIST, and of familiar and novel viewpoints."""

import functools
import shlex
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ..nn.trace import iterated, iterations_of, keeps_couplings
from ..routing import ROUTING
from ..training.autosize import own_command
from ..training.recipe import Recipe, list_recipes, read_recipe
from .figure import DoesNotApply, Drawn, Run, accuracy, routed_by
from .style import BLUE, COLOURS, INK, MARKERS, MUTED, RED, colour_of, grid, label_curves, look_of, styled, subplots

NO_CURVES = "runs evaluated during training are needed; give finished ones with --beside"
ABLATIONS = {"attention": "", "A: no LayerNorm": "model.options.norm=false", "B: sequential": "model.concurrent=false",
             "C: activations": "model.options.activation=true"}  # bar -> its override
HELD_OUT = {"azimuth": "held_out_azimuths", "elevation": "held_out_elevations"}


class Facts(NamedTuple):
    """algorithm: "" for a plain network. changed: the overrides of the model but for its iterations."""

    recipe: Recipe
    algorithm: str
    iterations: int
    changed: dict[str, Any]


Rows = list[tuple[dict[str, Any], Facts]]  # records of finished runs with their facts


def facts(record: dict[str, Any]) -> Facts | None:
    """The facts of a record's recipe and overrides; None for an ensemble or a recipe that no longer exists."""
    if "members" in record:
        return None
    return _facts(record["recipe"], tuple(o for o in record["overrides"] if not o.startswith("train.seed=")))


@functools.cache
def _facts(name: str, overrides: tuple[str, ...]) -> Facts | None:
    try:
        recipe = read_recipe(name, overrides)
        routed = routed_by(recipe.model.name, recipe.model.overrides)
    except (ValueError, TypeError, OSError):
        return None
    return Facts(recipe, *routed, {k: v for k, v in recipe.model.overrides.items() if k != "iterations"})


def known(run: Run) -> Rows:
    return [(record, f) for record in run.records if (f := facts(record)) is not None]


def comparable(run: Run) -> Rows:
    """The known runs on the same data as this one."""
    if run.recipe is None:
        raise DoesNotApply("a run of a recipe is needed; this checkpoint names none")
    return [(record, f) for record, f in known(run) if f.recipe.data.name == run.recipe.data.name]


def algorithm_name(f: Facts) -> str:
    return f.algorithm or "plain CNN"


def trained_alike(rows: Rows, key: Callable[[Recipe], Any], bar: Callable[[Facts], Any]) -> Rows:
    """The rows with the same `key` that make the most bars, so that no mean mixes runs of 10 and of 350 epochs."""
    groups: dict[str, Rows] = {}
    for record, f in rows:
        groups.setdefault(repr(key(f.recipe)), []).append((record, f))
    return max(groups.values(), key=lambda group: len({bar(f) for _, f in group}), default=[])


def length(recipe: Recipe) -> tuple[Any, ...]:
    """How long a run trains; losses, optimisers and their schedules are each model's own."""
    spec = recipe.train
    return spec.epochs, spec.steps, spec.batch, spec.stop_error, spec.select


def not_measured(absent: dict[str, str]) -> str:
    """Which runs are missing (name -> arguments of `flashcaps train`), and how to add them."""
    words = [name if name == command else f"{name} ({command})" for name, command in absent.items()]
    return f"not measured yet: {', '.join(words)}; flashcaps train each, and give the folders with --beside"


def missing_sentence(absent: dict[str, str]) -> str:
    """`not_measured` as the last sentence of a caption; "" where nothing is missing."""
    return f" N{not_measured(absent)[1:]}." if absent else ""


@styled
def training_loss(run: Run) -> Drawn:
    """Training loss with 1 against 3 routing iterations (dynamic, Fig. A.2)."""
    own = (run.model.name, {k: v for k, v in run.model.overrides.items() if k != "iterations"})
    curves = {f.iterations: [m for m in r["metrics"] if m["kind"] == "train"] for r, f in comparable(run)
              if r.get("metrics") and (f.recipe.model.name, f.changed) == own}
    if len(curves) < 2:
        words = shlex.join(own_command(run.recipe)) if run.recipe else "RECIPE"
        raise DoesNotApply("runs with different numbers of iterations are needed: flashcaps train "
                           f"{words} model.iterations=1, then --beside its folder")
    fig, (axis,) = subplots(7.5, 3.8)
    data = {}
    for k, (count, lines) in enumerate(sorted(curves.items())):
        steps, losses = [m["step"] for m in lines], [m["loss"] for m in lines]
        data[count] = {"step": steps, "loss": losses}
        axis.plot(steps, losses, label=f"{count} iteration{'s' * (count > 1)}", **look_of(k))
    label_curves(axis, "training step", "training loss", log=True)
    last = {count: statistics.fmean(d["loss"][-3:]) for count, d in data.items()}
    best = min(last, key=lambda c: last[c])
    text = (f"Training loss of {run.model.name}. At the end (mean of the last three points): "
            + ", ".join(f"{value:.4f} with {count}" for count, value in last.items())
            + f" iterations. The lowest is with {best}.")
    return Drawn({"curves": data, "last": last}, fig, text)


@styled
def iterations(run: Run, most: int = 5) -> Drawn:
    """Accuracy against routing iterations: of this model rerouted, and of runs trained so (attention, Fig. 4)."""
    own = iterations_of(run.stack())
    rerouted = reroute(run, 1 if keeps_couplings(run.layer().routing) else most)
    trained: dict[str, dict[int, list[float]]] = {}
    if run.recipe is not None:
        for record, f in comparable(run):
            if f.algorithm:
                trained.setdefault(f.algorithm, {}).setdefault(f.iterations, []).append(accuracy(record))
    fig, (axis,) = subplots(7.5, 3.9)
    axis.plot(list(rerouted), list(rerouted.values()), "o--", color=INK, label="this model, rerouted")
    for k, (name, points) in enumerate(sorted(trained.items())):
        x = sorted(points)
        axis.plot(x, [statistics.fmean(points[t]) for t in x], marker=MARKERS[k % len(MARKERS)], markersize=9,
                  color=colour_of(name), label=f"trained: {name}")
    axis.axvline(own, color=MUTED, linewidth=1, linestyle=":")
    label_curves(axis, "routing iterations", "accuracy, %")
    axis.set_xticks(range(1, max([most, *rerouted, *(t for p in trained.values() for t in p)]) + 1))
    said = ", ".join(f"{v:.1f} % with {t}" for t, v in rerouted.items())
    text = (f"{run.model.name} was trained with {own} iterations (dotted). The same weights with other numbers of "
            f"iterations, on {len(run.examples().inputs)} test examples: {said}.")
    if trained:
        text += " Trained runs on the same data: " + "; ".join(
            f"{name} {', '.join(f'{statistics.fmean(v):.2f} % with {t}' for t, v in sorted(points.items()))}"
            for name, points in sorted(trained.items())) + "."
    return Drawn({"rerouted": rerouted, "trained": trained, "own": own}, fig, text)


def reroute(run: Run, most: int) -> dict[int, float]:
    """Accuracy in percent on the examples with 1, 2, ... iterations."""
    found = {}
    for t in range(1, most + 1):
        with iterated(run.stack(), t):
            found[t] = float(replace(run).right.float().mean() * 100)
    return found


@styled
def convergence(run: Run) -> Drawn:
    """Convergence curves per algorithm and number of iterations (attention, Fig. 4, top)."""
    panels: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for record, f in comparable(run):
        if len(record.get("curve", [])) > 1:
            panels.setdefault(algorithm_name(f), []).append((f.iterations, record))
    if not panels:
        raise DoesNotApply(NO_CURVES)
    names = [n for n in ROUTING if n in panels] + [n for n in panels if n not in ROUTING]
    fig, axes = subplots(max(3.4 * len(names), 5.5) + 0.4, 4.4, 1, len(names), sharey=True)
    data: dict[str, Any] = {}
    for axis, name in zip(axes, names, strict=True):
        for k, (count, record) in enumerate(sorted(panels[name], key=lambda p: p[0])):
            epochs = [c["epoch"] + 1 for c in record["curve"]]
            values = [100 - c["error"] for c in record["curve"]]
            data[f"{name} {count} {record['recipe']} {record['variant']} {record['seed']}"] = (epochs, values)
            alike = sum(c == count for c, _ in panels[name]) > 1
            label = f"{count} iteration{'s' * (count > 1)}" if count else record["recipe"]
            label += f", {_variant(record)}" if alike else ""
            axis.plot(epochs, values, label=label, **look_of(k))
        axis.set(title=name, xlabel="epoch")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=10)
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("accuracy on held-out data, %")
    grid(*axes)
    ends = [f"{key.split()[0]} with {key.split()[1]}: {values[-1]:.2f} % after {epochs[-1]} epochs"
            for key, (epochs, values) in data.items()]
    return Drawn({"curves": data}, fig, f"Accuracy on held-out data during training. {'; '.join(ends)}.")


def _variant(record: dict[str, Any]) -> str:
    """What distinguishes a run from its neighbours, in a few characters."""
    own = [o.removeprefix("model.") for o in record["overrides"] if "iterations" not in o and "routing=" not in o]
    text = " ".join([*own, f"seed {record['seed']}"])
    return text if len(text) < 30 else text[:28] + "…"


@styled
def error_curves(run: Run) -> Drawn:
    """Error curves per algorithm on the same data (discriminative, Fig. 3)."""
    best: dict[str, dict[str, Any]] = {}
    for record, f in comparable(run):
        name = algorithm_name(f)
        if len(record.get("curve", [])) > 1 and (name not in best or accuracy(record) > accuracy(best[name])):
            best[name] = record
    if not best:
        raise DoesNotApply(NO_CURVES)
    fig, (axis,) = subplots(7.5, 3.8)
    data = {}
    for k, (name, record) in enumerate(best.items()):
        steps, errors = [c["step"] for c in record["curve"]], [c["error"] for c in record["curve"]]
        data[name] = (steps, errors)
        axis.plot(steps, [max(e, 0.01) for e in errors], marker=MARKERS[k % len(MARKERS)], markersize=5, label=name,
                  color=colour_of(name))
    label_curves(axis, "training step", "error on held-out data, %", log=True)
    said = "; ".join(f"{n} ends at {e[-1]:.2f} % (best {min(e):.2f} %)" for n, (_, e) in data.items())
    assert run.recipe is not None
    text = f"Error on held-out {run.recipe.data.name}: {said}. One run per algorithm, the best."
    return Drawn({"curves": data}, fig, text)


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
