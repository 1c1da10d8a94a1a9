"""Stored runs: adding one to results/runs, seeds of one setting together, and a group in words."""

import gzip
import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flashcaps.training.checkpoint import write_atomic
from flashcaps.training.results import duration, keep

Group = list[dict[str, Any]]  # the runs of one setting, a seed each
Groups = dict[tuple[str, str], Group]  # (recipe, variant) -> its runs


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


def plain_command(command: str) -> str:
    """A command without the folders of the machine it ran on."""
    words = re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+", command)  # a quoted word is one, and stays quoted
    skipped = {k + 1 for k, word in enumerate(words) if word in ("--out", "--data")}
    return " ".join(w for k, w in enumerate(words) if k not in skipped and w not in ("--out", "--data"))


def grouped(runs: Iterable[dict[str, Any]]) -> Groups:
    groups: Groups = {}
    for run in runs:
        groups.setdefault((run["recipe"], run["variant"]), []).append(run)
    return groups


def changes(run: dict[str, Any], *but: str) -> str:
    """What a run changed in its recipe, except the seed and the keys in `but`."""
    return " ".join(o for o in run["overrides"] if o.split("=")[0] not in ("train.seed", "seed", *but))


def mean(runs: Group) -> float:
    return statistics.fmean(r["value"] for r in runs)


def is_accuracy(runs: Group) -> bool:
    """Whether more is better; otherwise the value is an error."""
    return "accuracy" in runs[0]["metric"]


def score(runs: Group) -> float:
    """Lower is better, for errors and accuracies alike."""
    return -mean(runs) if is_accuracy(runs) else mean(runs)


def value_in_words(runs: Group) -> str:
    """The mean over seeds with its deviation, or one value with its interval; † if the recipe has changed since."""
    values = [r["value"] for r in runs]
    if len(values) > 1:
        text = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} ({len(values)} seeds)"
    else:
        low, high = runs[0]["interval"]
        text = f"{values[0]:.2f} ({low:.2f} to {high:.2f})"
    text = text if runs[0]["split"] == "test" else f"{text}, best test epoch"
    return f"{text} †" if any("earlier" in run for run in runs) else text


def training_time(runs: Group) -> str:
    """The mean over seeds, and whether the device was shared."""
    shared = " (beside)" if any(r.get("beside") for r in runs) else ""
    return duration(statistics.fmean(r["wall_s"] for r in runs)) + shared
