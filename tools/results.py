"""Tables from the files under results/: make results, or python -m tools.results [RUN ...]

Finished run folders that are named are added to results/runs first.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

from flashcaps.models import create_model
from flashcaps.routing import ROUTING
from flashcaps.training.checkpoint import write_atomic
from flashcaps.training.recipe import Claim, Recipe, list_recipes, read_recipe
from flashcaps.training.results import read_results

from .goals import make_goals
from .runs import Group, add_result, changes, grouped, is_accuracy, mean, score, training_time, value_in_words

RESULTS = Path(__file__).parents[1] / "results"
COLUMNS = ("| paper | recipe | the paper's | public code's | ours | reached | parameters | training time | on |",
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
SUMMARY = ("| paper | recipe | the paper's | ours | epochs | reached |", "| --- | --- | --- | --- | --- | --- |")
HEADER = """# Results

Made by `make results` from the files under `runs/`; no number is typed by hand. Percent on the test set;
where several seeds were run, their mean, standard deviation and number, and otherwise the 95 % interval of the one.
"Beside": the device was shared with other work meanwhile, so the time says little. †: the network or its recipe has
changed since the commit in the run's file, where `earlier` says how it was.
"""
GOALS = """
## Goals

What `goals.toml` asks for, and every attempt at it: what it changed in its recipe, and what it reached. Bold: the goal
is met.
"""
TRIALS = """
## Trials

Trials on the way, from the files under `trials/`: percent wrong of images held out from training, by which settings
were chosen; where images are composed without end, of those of the last 1,000 steps, each seen for the first time.

| recipe | changed | held out | epochs | error |
| --- | --- | --- | --- | --- |
"""


def make_table(results: Path) -> str:
    """results/README.md: one row per recipe and variant, papers in order; then goals and trials."""
    groups = grouped(read_results(results))
    recipes = {name: read_recipe(name) for name in list_recipes()}
    rows = [*COLUMNS]
    for name, kind in sorted(groups, key=lambda g: (paper_order(recipes.get(g[0])), g[0], g[1] != "default", g[1])):
        rows.append(_row(name, kind, recipes.get(name), groups[name, kind]))
    measured = {name for name, _ in groups}
    missing = [n for n, r in recipes.items() if n not in measured and r.claim.value is not None]
    tail = f"\nNot measured yet: {', '.join(f'`{n}`' for n in missing)}.\n" if missing else ""
    goals = make_goals(results, groups)
    return HEADER + "\n" + "\n".join(rows) + "\n" + tail + (GOALS + goals if goals else "") + make_trials(results)


def make_trials(results: Path) -> str:
    """One row per trial that held images out, the best of each recipe first."""
    rows = []
    for path in (results / "trials").glob("*.json"):
        run = json.loads(path.read_text())
        if not run.get("curve"):
            continue
        held = next((o.split("=")[1] for o in run["overrides"] if o.startswith("data.validation=")), "")
        changed = changes(run, "data.validation", "data.test", "evaluate_every", "epochs") or "nothing"
        shown = f"{int(held):,}" if held else run["curve"][-1]["split"]
        rows.append((run["recipe"], run["curve"][-1]["error"], changed, shown, run["epochs"]))
    lines = [f"| `{recipe}` | {changed} | {held} | {epochs:.4g} | {error:.2f} |"
             for recipe, error, changed, held, epochs in sorted(rows)]  # fmt: skip
    return TRIALS + "\n".join(lines) + "\n" if rows else ""


def make_summary(results: Path) -> str:
    """For the project's README: of every paper and data set the best network with the paper's own algorithm.

    Seeds count only if all of them were trained for the epochs, or steps, that their recipe names.
    """
    best: dict[tuple[str, str], tuple[Recipe, Group]] = {}
    for (name, _), runs in grouped(read_results(results)).items():
        recipe = read_recipe(name) if name in list_recipes() else None
        if recipe is None or recipe.claim.value is None or not is_full(recipe, runs):
            continue
        paper = recipe.claim.paper.split(",")[0]
        better = (paper, recipe.data.name) not in best or score(runs) < score(best[paper, recipe.data.name][1])
        if better and routed_by(recipe) == paper:
            best[paper, recipe.data.name] = recipe, runs
    rows = [f"| {recipe.claim.paper} | `{recipe.name}` | {recipe.claim} | {value_in_words(runs)} "
            f"| {runs[0]['epochs']:.3g} | {_reached(recipe.claim, runs)} |"
            for recipe, runs in sorted(best.values(), key=lambda b: (paper_order(b[0]), b[0].name))]  # fmt: skip
    return "\n".join([*SUMMARY, *rows])


def routed_by(recipe: Recipe) -> str:
    """The algorithm of the class layer; "" for a baseline without capsules."""
    with torch.device("meta"):
        model: Any = create_model(recipe.model.name, **recipe.model.overrides)
    return model.capsules.layers[-1].name if hasattr(model, "capsules") else ""


def is_full(recipe: Recipe, runs: Group) -> bool:
    """Whether all were trained for as long as the recipe says."""
    train = recipe.train
    if train.steps:
        return all(run["images"] >= train.steps * train.batch for run in runs)
    return all(run["epochs"] >= train.epochs for run in runs)


def paper_order(recipe: Recipe | None) -> tuple[int, str]:
    """Papers as their algorithms come in ROUTING; others after them."""
    paper = recipe.claim.paper if recipe else ""
    names = list(ROUTING)
    first = paper.split(",")[0]
    return (names.index(first) if first in names else len(names), paper)


def _reached(claim: Claim | None, runs: Group) -> str:
    """Whether the mean, as printed, is as good as the paper's number; of other data there is none to compare with."""
    if claim is None or claim.value is None or claim.on.lower() not in ("", runs[0].get("data")):
        return ""
    ours = round(mean(runs), 2)
    return "yes" if (ours >= claim.value if is_accuracy(runs) else ours <= claim.value) else "no"


def _row(name: str, kind: str, recipe: Recipe | None, runs: Group) -> str:
    claim = recipe.claim if recipe else None
    theirs = "" if claim is None else str(claim)
    public = "" if claim is None or claim.public is None else f"{claim.public:g}"
    cut = re.search("-[0-9a-f]{8}$", kind)  # a name too long for a file, which ends in a hash
    shown = changes(runs[0]) if cut else kind.replace(",", " ")
    label = f"`{name}`" if kind == "default" else f"`{name}` {shown}"
    hardware = ", ".join(sorted({r["hardware"] for r in runs}))
    return (f"| {claim.paper if claim else ''} | {label} | {theirs} | {public} | {value_in_words(runs)} "
            f"| {_reached(claim, runs)} | {runs[0]['parameters']:,} | {training_time(runs)} | {hardware} |")


def main() -> None:
    for run in sys.argv[1:]:
        print(add_result(Path(run), RESULTS))
    write_atomic(RESULTS / "README.md", make_table(RESULTS))


if __name__ == "__main__":
    main()
