"""The goals in results/goals.toml, and every attempt at them among the runs beside it.

    [[goal]]
    about = "MNIST"
    recipes = ["capsnet_mnist", "capsnet_mnist_fast"]
    at_most = 0.25                    # percent; at_least where more is better
    seeds = 3                         # an attempt counts as their mean

`within_s` bounds the training time, too; a run that shared its device does not count. `against` names recipes to beat:
the number is then how far ahead a run is of the best of them. A rival is taken with the same changes if it was measured
with them, and otherwise as its recipe is; where a rival was not measured at all, there is no attempt yet.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .runs import Group, Groups, changes, is_accuracy, mean, training_time

HEADER = """## Goals

What `goals.toml` asks for, and the best attempt at it; all attempts are rows of the tables.
"""


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
    """runs: the seeds of one setting. value: their mean, or how far that is ahead of the best rival."""

    runs: Group
    value: float
    reached: bool


def read_goals(results: Path) -> list[Goal]:
    """results/goals.toml; none where there is no such file."""
    path = results / "goals.toml"
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("goal", []) if path.is_file() else []
    for entry in entries:
        entry |= {k: tuple(v) for k, v in entry.items() if isinstance(v, list)}
    return [Goal(**entry) for entry in entries]


def attempts(goal: Goal, groups: Groups) -> list[Attempt]:
    """All settings of the goal's recipes, the best first."""
    found = []
    for (recipe, variant), runs in groups.items():
        rivals = [groups.get((name, variant)) or groups.get((name, "default")) or [] for name in goal.against]
        if recipe in goal.recipes and all(rivals):
            found.append(_attempt(goal, runs, rivals))
    return sorted(found, key=lambda a: (a.value if goal.at_least is None else -a.value, a.runs[0]["variant"]))


def _attempt(goal: Goal, runs: Group, rivals: list[Group]) -> Attempt:
    value = mean(runs)
    if rivals and is_accuracy(runs):
        value -= max(map(mean, rivals))
    elif rivals:
        value = min(map(mean, rivals)) - value
    value = round(value, 2)
    reached = value <= goal.at_most if goal.at_most is not None else value >= (goal.at_least or 0)
    reached &= len(runs) >= goal.seeds
    if goal.within_s is not None:
        reached &= all(r["wall_s"] <= goal.within_s and not r.get("beside") for r in runs)
    return Attempt(runs, value, reached)


def make_goals(results: Path, groups: Groups) -> str:
    """The section of results/attempts.md: a line for every goal, with the best of the attempts at it."""
    goals = [_line(goal, attempts(goal, groups)) for goal in read_goals(results)]
    return "\n".join([HEADER, *goals]) if goals else ""


def _line(goal: Goal, tried: list[Attempt]) -> str:
    """The attempts themselves are rows of the tables."""
    reached = any(a.reached for a in tried)
    many = f"{len(tried)} attempt{'s' * (len(tried) > 1)}"
    verdict = "reached" if reached else f"missed in {many}" if tried else "not tried"
    best = next((a for a in tried if a.reached or not reached), None)
    if best is not None:
        changed = changes(best.runs[0]) or "nothing"
        verdict += (f". The best: {best.value:.2f} by `{best.runs[0]['recipe']}`, changed: {changed}; "
                    f"{len(best.runs)} seed{'s' * (len(best.runs) > 1)}, {training_time(best.runs)}")  # fmt: skip
    note = " ".join(goal.note.split())
    return f"- **{goal}**: {verdict}." + (f" {note}" if note else "")
