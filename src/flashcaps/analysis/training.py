"""Curves of loss, error and accuracy, from run folders and stored results."""

import shlex
import statistics
from dataclasses import replace
from typing import Any

from ..nn.trace import iterated, iterations_of, keeps_couplings
from ..routing import ROUTING
from ..training.autosize import own_command
from .figure import DoesNotApply, Drawn, Run
from .records import accuracy, algorithm_name, comparable
from .style import INK, MARKERS, MUTED, colour_of, grid, label_curves, look_of, styled, subplots

NO_CURVES = "runs evaluated during training are needed; give finished ones with --beside"


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

