"""Stored runs: adding one to results/runs, seeds of one setting together, and a group in words."""

import gzip
import json
import math
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flashcaps.training.checkpoint import write_atomic
from flashcaps.training.recipe import Recipe
from flashcaps.training.results import duration, keep, read_results

T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's 97.5 % point for the mean of so many seeds
Group = list[dict[str, Any]]  # the runs of one setting, a seed each
Groups = dict[tuple[str, str], Group]  # (recipe, variant) -> its runs


def add_result(run: Path, results: Path) -> Path:
    """Copy a finished run's result.json to results/runs/RECIPE/VARIANT-SEED.json, its log, compressed, beside it."""
    source = run / "result.json" if run.is_dir() else run
    if not source.is_file():
        raise FileNotFoundError(f"{run}: no result.json; only a finished run has one")
    result = json.loads(source.read_text())
    result["command"] = plain_command(result.get("command", ""))
    if "--dev" in result["command"].split():
        raise ValueError(f"{run}: expected a whole run, got a trial of a few steps; train it without --dev")
    path = keep(result, results / "runs")
    log = source.with_name("metrics.jsonl")
    if log.is_file():
        write_atomic(path.with_suffix(".jsonl.gz"), gzip.compress(log.read_bytes(), mtime=0))
    return path


def plain_command(command: str) -> str:
    """A command without the folders of the machine it ran on."""
    words = re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+", command)  # a quoted word is one, and stays quoted
    skipped = {k + 1 for k, word in enumerate(words) if word in ("--out", "--data")}
    return " ".join(w for k, w in enumerate(words) if k not in skipped and w not in ("--out", "--data"))


def read_groups(results: Path) -> Groups:
    return grouped(read_results(results))


def grouped(runs: Iterable[dict[str, Any]]) -> Groups:
    groups: Groups = {}
    for run in runs:
        groups.setdefault((run["recipe"], run["variant"]), []).append(run)
    return groups


def changed(run: dict[str, Any], *but: str) -> list[str]:
    """What a run changed in its recipe, except the seed and the keys in `but`; ensemble=7: seven models together."""
    kept = [o for o in run["overrides"] if o.split("=")[0] not in ("train.seed", "seed", *but)]
    return [*kept, f"ensemble={len(run['members'])}"] if "members" in run else kept


def changes(run: dict[str, Any], *but: str) -> str:
    return " ".join(changed(run, *but))


def mean(runs: Group) -> float:
    return statistics.fmean(r["value"] for r in runs)


def as_metric(runs: Group, metric: str) -> Group:
    """The same runs with their values as accuracy or as error."""
    return [run if run["metric"] == metric else run | {"metric": metric, "value": 100 - run["value"],
            "interval": [100 - x for x in reversed(run["interval"])]} for run in runs]  # fmt: skip


def is_full(recipe: Recipe, runs: Group) -> bool:
    """Whether all were trained for as long as the recipe says, or ended where it says."""
    train = recipe.train
    if train.stop_error and all(run["validation_error_percent"] <= train.stop_error for run in runs):
        return True
    if train.steps:
        return all(run["images"] >= train.steps * train.batch for run in runs)
    return all(run["epochs"] >= train.epochs for run in runs)


def gain(one: Group, many: Group) -> tuple[float, float, float]:
    """How much lower the error of `many` is, seed by seed: the mean, and its 95 % interval by Student's t."""
    errors = {run["seed"]: run["value"] for run in one}
    less = [errors[run["seed"]] - run["value"] for run in many if run["seed"] in errors]
    middle, half = statistics.fmean(less), T_975[len(less)] * statistics.stdev(less) / len(less) ** 0.5
    return middle, middle - half, middle + half


def chance(runs: Group) -> float:
    """Half of a 95 % interval: of the test images that were drawn, and of the seeds."""
    values = [run["value"] for run in runs]
    seeds = 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return math.hypot((runs[0]["interval"][1] - runs[0]["interval"][0]) / 2, seeds)


def value_in_words(runs: Group) -> str:
    """The mean over seeds with its deviation, or one value with its interval."""
    values = [r["value"] for r in runs]
    if len(values) > 1:
        return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} ({len(values)} seeds)"
    low, high = runs[0]["interval"]
    return f"{values[0]:.2f} ({low:.2f} to {high:.2f})"


def training_time(runs: Group) -> str:
    """The mean over seeds, and whether the device was shared."""
    shared = " (shared)" if any(r.get("beside") for r in runs) else ""
    return duration(statistics.fmean(r["wall_s"] for r in runs)) + shared
