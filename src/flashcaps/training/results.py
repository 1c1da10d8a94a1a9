"""What was measured: one JSON per run, and the table made from all of them."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .checkpoint import write_atomic
from .evaluate import Evaluation
from .recipe import Claim, Recipe, list_recipes, read_recipe

if TYPE_CHECKING:
    from .run_folder import RunFolder
    from .step import TrainStep

PAPERS = ("dynamic", "em", "attention", "heinsen", "discriminative")
COLUMNS = ("| paper | recipe | the paper's | public code's | ours | reached | parameters | training time | on |",
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
SUMMARY = ("| paper | recipe | the paper's | ours | epochs | reached |", "| --- | --- | --- | --- | --- | --- |")
SECTION = "<!-- results -->", "<!-- /results -->"
HEADER = """# Results

Made by `flashcaps results` from the files under `runs/`; no number is typed by hand. Percent on the test set;
where several seeds were run, their mean, standard deviation and number, and otherwise the 95 % interval of the one.
"Beside": the device was shared with other work meanwhile, so the time says little.
"""
GOALS = """
## Goals

What `goals.toml` asks for, and every attempt at it: what it changed in its recipe, and what it did. Bold: reached.
"""
TRIALS = """
## Trials

Tried on the way, from the files under `trials/`: percent wrong of images held out from training, which decided; where
images are composed without end, of those of the last 1,000 steps, each seen for the first time.

| recipe | changed | held out | epochs | error |
| --- | --- | --- | --- | --- |
"""


def make_result(
    recipe: Recipe, run: RunFolder, step: TrainStep, test: Evaluation, weights: str, at: int
) -> dict[str, Any]:
    """What result.json of a run says."""
    from .run_folder import variant

    value, interval = test.metric(recipe.claim.metric)
    metrics = run.metrics()
    curve = [{k: m[k] for k in ("step", "epoch", "error", "split")} for m in metrics if m["kind"] == "evaluation"]
    held = [c["error"] for c in curve if c["split"] == "validation"]
    chosen = min(held, default=None) if recipe.train.select == "validation" else (held or [None])[-1]
    return {
        "recipe": recipe.name,
        "variant": variant(recipe),
        "overrides": list(recipe.overrides),
        "seed": recipe.train.seed,
        "data": recipe.data.name,
        "split": "test, best epoch chosen on it" if recipe.train.select == "test" else "test",
        "metric": recipe.claim.metric,
        "value": round(value, 4),
        "interval": [round(x, 4) for x in interval],
        "validation_error_percent": None if chosen is None else round(chosen, 4),
        "digit_accuracy": round(test.digit_accuracy, 4),
        "examples": test.examples,
        "weights": weights,
        "parameters": sum(p.numel() for p in step.model.parameters()),
        "epochs": round(at / step.stream.steps, 3),
        "images": at * step.stream.share.batch * step.workers.world,
        "wall_s": round(run.wall_s, 2),
        "hardware": hardware(step.workers.device, step.workers.world),
        "beside": os.environ.get("FLASHCAPS_BESIDE", ""),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "flashcaps": _version()},
        "commit": commit(),
        "command": shlex.join(run.command),
        "curve": curve,
    }


def _version() -> str:
    from .. import __version__

    return __version__


def hardware(device: torch.device, world: int = 1) -> str:
    """The device in words, and how many of them."""
    times = f"{world} x " if world > 1 else ""
    if device.type == "cuda":
        return times + torch.cuda.get_device_name(device)
    return f"{times}CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def commit() -> str:
    """Of the sources: $FLASHCAPS_COMMIT, or git's, "+" where files differ from it; "" where neither is known."""
    given = os.environ.get("FLASHCAPS_COMMIT")
    if given:
        return given
    try:
        known = _git("rev-parse", "--short=12", "HEAD")
        return known + ("+" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def add_result(run: Path, results: Path) -> Path:
    """Copy a finished run's result.json to results/runs/RECIPE/VARIANT-SEED.json, its log, compressed, beside it."""
    source = run / "result.json" if run.is_dir() else run
    if not source.is_file():
        raise FileNotFoundError(f"{run}: no result.json; only a finished run has one")
    result = json.loads(source.read_text())
    result["command"] = plain_command(result.get("command", ""))
    path = keep(result, results / "runs")
    log = source.with_name("metrics.jsonl")
    if log.is_file():
        write_atomic(path.with_suffix(".jsonl.gz"), gzip.compress(log.read_bytes(), mtime=0))
    return path


def keep(result: dict[str, Any], folder: Path) -> Path:
    """Write a result to FOLDER/RECIPE/VARIANT-SEED.json."""
    path = folder / result["recipe"] / f"{result['variant']}-{result['seed']}.json"
    write_atomic(path, json.dumps(result, indent=2) + "\n")
    return path


def plain_command(command: str) -> str:
    """A command without the folders of the machine it ran on."""
    words = re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+", command)  # a quoted word is one, and stays quoted
    skipped = {k + 1 for k, word in enumerate(words) if word in ("--out", "--data")}
    return " ".join(w for k, w in enumerate(words) if k not in skipped and w not in ("--out", "--data"))


def read_results(results: Path) -> list[dict[str, Any]]:
    """All runs, in a fixed order."""
    runs = []
    for path in sorted((results / "runs").glob("*/*.json")):
        try:
            runs.append(json.loads(path.read_text()))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: not JSON ({error}); remove it or add its run again") from None
    return runs


def best_results(results: Path) -> dict[str, str]:
    """For every recipe, its best row of the table in words: "0.31 % error"."""
    best: dict[str, tuple[float, str]] = {}
    for (recipe, _), runs in _grouped(read_results(results)).items():
        value, word = mean(runs), word_of(runs)
        key = value if word == "error" else -value
        if recipe not in best or key < best[recipe][0]:
            best[recipe] = (key, f"{value:.2f} % {word}")
    return {recipe: text for recipe, (_, text) in best.items()}


def make_table(results: Path) -> str:
    """results/README.md: one row per recipe and variant, papers in order; then goals and trials."""
    from .goals import make_goals

    groups = _grouped(read_results(results))
    recipes = {name: read_recipe(name) for name in list_recipes()}
    rows = [*COLUMNS]
    for name, kind in sorted(groups, key=lambda g: (_paper(recipes.get(g[0])), g[0], g[1] != "default", g[1])):
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
    """For the project's README: the best variant of every recipe that repeats a paper's number, in short."""
    best: dict[str, tuple[float, Recipe, list[dict[str, Any]]]] = {}
    for (name, _), runs in _grouped(read_results(results)).items():
        recipe = read_recipe(name) if name in list_recipes() else None
        if recipe is None or recipe.claim.value is None:
            continue
        key = mean(runs) * (-1 if word_of(runs) == "accuracy" else 1)
        if name not in best or key < best[name][0]:
            best[name] = key, recipe, runs
    rows = [f"| {recipe.claim.paper} | `{name}` | {recipe.claim} | {_ours(runs)} | {_epochs(recipe, runs)} "
            f"| {_reached(recipe.claim, runs)} |"
            for name, (_, recipe, runs) in sorted(best.items(), key=lambda b: (_paper(b[1][1]), b[0]))]  # fmt: skip
    return "\n".join([*SUMMARY, *rows]) + "\n"


def write_table(results: Path) -> Path:
    """results/README.md, and the section between the `results` markers of the README beside the folder."""
    path = results / "README.md"
    write_atomic(path, make_table(results))
    readme = results.parent / "README.md"
    if readme.is_file():
        before, opened, rest = readme.read_text().partition(SECTION[0])
        _, closed, after = rest.partition(SECTION[1])
        if opened and closed:
            write_atomic(readme, f"{before}{opened}\n{make_summary(results)}{closed}{after}")
    return path


def _grouped(runs: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["recipe"], run["variant"]), []).append(run)
    return groups


def changes(run: dict[str, Any], *but: str) -> str:
    """What a run changed in its recipe, but the seed, which has a place of its own, and `but`."""
    return " ".join(o for o in run["overrides"] if o.split("=")[0] not in ("train.seed", "seed", *but))


def _paper(recipe: Recipe | None) -> tuple[int, str]:
    paper = recipe.claim.paper if recipe else ""
    first = paper.split(",")[0]
    return (PAPERS.index(first) if first in PAPERS else len(PAPERS), paper)


def word_of(runs: list[dict[str, Any]]) -> str:
    return "accuracy" if "accuracy" in runs[0]["metric"] else "error"


def mean(runs: list[dict[str, Any]]) -> float:
    return statistics.fmean(r["value"] for r in runs)


def _reached(claim: Claim | None, runs: list[dict[str, Any]]) -> str:
    """Whether the mean, as printed, is as good as the paper's number; of other data there is none to compare with."""
    if claim is None or claim.value is None or claim.on.lower() not in ("", runs[0].get("data")):
        return ""
    ours = round(mean(runs), 2)
    return "yes" if (ours >= claim.value if word_of(runs) == "accuracy" else ours <= claim.value) else "no"


def _ours(runs: list[dict[str, Any]]) -> str:
    """The mean over seeds with their deviation, or the one value with its interval."""
    values = [r["value"] for r in runs]
    if len(values) > 1:
        ours = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} ({len(values)} seeds)"
    else:
        low, high = runs[0]["interval"]
        ours = f"{values[0]:.2f} ({low:.2f} to {high:.2f})"
    return ours if runs[0]["split"] == "test" else f"{ours}, best test epoch"


def _epochs(recipe: Recipe, runs: list[dict[str, Any]]) -> str:
    """Those trained for, and the recipe's where it has others."""
    trained = f"{runs[0]['epochs']:.3g}"
    asked = "" if recipe.train.steps else f"{recipe.train.epochs:g}"
    return trained if asked in ("", trained) else f"{trained} of {asked}"


def _row(name: str, kind: str, recipe: Recipe | None, runs: list[dict[str, Any]]) -> str:
    claim = recipe.claim if recipe else None
    theirs = "" if claim is None else str(claim)
    public = "" if claim is None or claim.public is None else f"{claim.public:g}"
    shown = changes(runs[0]) if re.search("-[0-9a-f]{8}$", kind) else kind.replace(",", " ")  # the first: cut short
    label = f"`{name}`" if kind == "default" else f"`{name}` {shown}"
    hardware = ", ".join(sorted({r["hardware"] for r in runs}))
    return (f"| {claim.paper if claim else ''} | {label} | {theirs} | {public} | {_ours(runs)} "
            f"| {_reached(claim, runs)} | {runs[0]['parameters']:,} | {took(runs)} | {hardware} |")


def took(runs: list[dict[str, Any]]) -> str:
    """The mean training time, and whether the device was shared."""
    shared = " (beside)" if any(r.get("beside") for r in runs) else ""
    return duration(statistics.fmean(r["wall_s"] for r in runs)) + shared


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 05 min."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return f"{s // 60} min {s % 60:02d} s" if s < 3600 else f"{s // 3600} h {s % 3600 // 60:02d} min"
