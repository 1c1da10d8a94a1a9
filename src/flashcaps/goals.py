"""What was aimed at, and what every attempt at it changed and did: results/goals.toml and the runs beside it.

    [[goal]]
    about = "MNIST"
    recipes = ["capsnet_mnist", "capsnet_mnist_fast"]
    at_most = 0.25                    # percent; at_least where more is better
    seeds = 3                         # an attempt counts as their mean

`within_s` bounds the training time, too, of a run that had the device to itself. `against` names recipes to beat: the
number is then how far ahead a run is of the best of them, with the same changes where those were measured, else none.
"""

from __future__ import annotations

import statistics
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

Groups = dict[tuple[str, str], list[dict[str, Any]]]  # (recipe, variant) -> its runs


@dataclass(frozen=True)
class Goal:
    about: str
    recipes: tuple[str, ...]
    at_most: float | None = None
    at_least: float | None = None
    within_s: float | None = None
    seeds: int = 1
    against: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            got = "none" if self.at_most is None else "both"
            raise ValueError(f"goal {self.about!r}: expected at_most or at_least, got {got}")

    def __str__(self) -> str:
        limit = f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"
        limit += " points ahead" if self.against else " %"
        limit += f" in {self.within_s:g} s" if self.within_s else ""
        return f"{self.about}, {limit}" + (f", mean of {self.seeds} seeds" if self.seeds > 1 else "")


@dataclass(frozen=True)
class Attempt:
    """runs: one setting, a seed each. value: their mean, or how far that is ahead."""

    runs: list[dict[str, Any]]
    value: float
    reached: bool


def read_goals(results: Path) -> list[Goal]:
    """results/goals.toml; none where there is no such file."""
    path = results / "goals.toml"
    if not path.is_file():
        return []
    known, goals = {f.name for f in fields(Goal)}, []
    for entry in tomllib.loads(path.read_text()).get("goal", []):
        unknown = sorted(set(entry) - known)
        if unknown or not {"about", "recipes"} <= set(entry):
            others = ", ".join(sorted(known))
            raise ValueError(f"{path}: expected about, recipes, and others of {others}; got {sorted(entry)}")
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        goals.append(Goal(**given))
    return goals


def attempts(goal: Goal, groups: Groups) -> list[Attempt]:
    """All settings of the goal's recipes, the best first."""
    found = [_attempt(goal, kind, groups) for kind in groups if kind[0] in goal.recipes]
    return sorted(found, key=lambda a: (a.value if goal.at_least is None else -a.value, a.runs[0]["variant"]))


def _attempt(goal: Goal, kind: tuple[str, str], groups: Groups) -> Attempt:
    runs, limit = groups[kind], goal.at_least if goal.at_most is None else goal.at_most
    assert limit is not None
    value = _mean(runs)
    if goal.against:
        best = max if "accuracy" in runs[0]["metric"] else min
        value -= best(_mean(groups.get((name, kind[1])) or groups[name, "default"]) for name in goal.against)
    value = round(value, 2)
    reached = len(runs) >= goal.seeds and (value >= limit if goal.at_most is None else value <= limit)
    if goal.within_s is not None:
        reached &= all(r["wall_s"] <= goal.within_s and not r.get("beside") for r in runs)
    return Attempt(runs, value, reached)


def _mean(runs: list[dict[str, Any]]) -> float:
    return statistics.fmean(r["value"] for r in runs)


def make_goals(results: Path, groups: Groups) -> str:
    """The section of results/README.md: a table for every goal, a row for every attempt at it."""
    return "".join(_section(goal, attempts(goal, groups)) for goal in read_goals(results))


def _section(goal: Goal, tried: list[Attempt]) -> str:
    from .results import changes, duration

    reached = any(a.reached for a in tried)
    verdict = "reached" if reached else f"missed in {len(tried)} attempts" if tried else "not tried"
    lines = ["", f"### {goal}: {verdict}", ""]
    lines += [goal.note.strip(), ""] if goal.note else []
    number = "points ahead" if goal.against else "percent"
    lines += [f"| recipe | changed | seeds | images | {number} | training time |", "|" + " --- |" * 6]
    for a in tried:
        first, seconds = a.runs[0], statistics.fmean(r["wall_s"] for r in a.runs)
        beside = " (beside)" if any(r.get("beside") for r in a.runs) else ""
        value = f"**{a.value:.2f}**" if a.reached else f"{a.value:.2f}"
        lines.append(f"| `{first['recipe']}` | {changes(first) or 'nothing'} | {len(a.runs)} | {first['images']:,} "
                     f"| {value} | {duration(seconds)}{beside} |")  # fmt: skip
    return "\n".join(lines) + "\n"
