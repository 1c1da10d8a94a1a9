"""The runs that the tables of results/ still lack: make queue, or python -m tools.queue [WORD ...]

A line is "NAME: arguments of flashcaps train", where NAME is that of the run's folder; tables come by their `turn`.
Words choose tables by their paper or title. A comment says about how long a run takes where one of the same network was
stored, with "beside" where that one shared its device. The command that tests several models as one follows them.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from flashcaps.training.recipe import Recipe
from flashcaps.training.run_folder import run_name

from .results import RESULTS, heading
from .runs import Group, Groups, read_groups
from .tables import Cell, Table, breaches, fill, find_runs, read_tables, recipe_of


def make_queue(results: Path, *words: str) -> list[str]:
    """One line for every missing run, also where two tables lack it."""
    groups, tables = read_groups(results), sorted(read_tables(results), key=lambda table: table.turn)
    for word in words:
        if not any(word.lower() in heading(table).lower() for table in tables):
            raise SystemExit(f"{word}: expected a part of a paper or title in {results / 'tables.toml'}")
    chosen = [table for table in tables if not words or any(word.lower() in heading(table).lower() for word in words)]
    cells = [(table, cell) for table in chosen for cell in fill(table, groups) if not cell.runs]
    return list(dict.fromkeys(line for table, cell in cells for line in make_lines(table, cell, groups)))


def make_lines(table: Table, cell: Cell, groups: Groups) -> Iterator[str]:
    """The missing runs of a cell; all members of an ensemble, of which weights are needed."""
    spec, _, members = cell.spec.partition(" ensemble=")
    name, *overrides = spec.split()
    seeds = [*range(int(members))] if members else missing_seeds(table, cell, find_runs(spec, groups))
    names = [run_name(recipe_of(name, *overrides, f"train.seed={seed}")) for seed in seeds]
    for own, seed in zip(names, seeds, strict=True):
        yield f"{own}: {spec} --seed {seed}{estimate(name, overrides, groups)}"
    if members:
        yield f"# flashcaps evaluate {' '.join(f'runs/{own}' for own in names)} --ensemble --keep results"


def missing_seeds(table: Table, cell: Cell, runs: Group) -> list[int]:
    """Those of stored runs that break the protocol, which keep the others out, and as many more as the table wants."""
    broken = [run["seed"] for run in runs if breaches(table, replace(cell.row, seeds=1), [run])]
    stored = {run["seed"] for run in runs}
    more = (seed for seed in count() if seed not in stored)
    return [*broken, *islice(more, max(table.seeds_of(cell.row) - len(stored), 0))]


def estimate(name: str, overrides: list[str], groups: Groups) -> str:
    """By a run of the same network on the same data: rather alone on its device, with the same batch, long."""
    recipe = recipe_of(name, *overrides)
    train, rated = recipe.train, []
    for run in (run for runs in groups.values() for run in runs if "members" not in run):
        other = recipe_of(run["recipe"], *run["overrides"])
        if network(other) == network(recipe):
            changed = "earlier" in run or other.train.batch != train.batch
            rated.append((bool(run.get("beside")), changed, -run["images"], run))
    if not rated:
        return ""
    beside, _, _, run = min(rated, key=lambda rate: rate[:3])
    images = train.steps * train.batch or train.epochs * run["images"] / run["epochs"]
    return f"  # about {run['wall_s'] * images / run['images']:.0f} s" + " (beside)" * beside


def network(recipe: Recipe) -> tuple[Any, ...]:
    """What the time of a step depends on, but for the batch; how weights start and options of routing are left out."""
    changes = {key: x for key, x in recipe.model.overrides.items() if key not in ("original", "options")}
    return recipe.model.name, changes, recipe.data.name, recipe.data.options


if __name__ == "__main__":
    print("\n".join(make_queue(RESULTS, *sys.argv[1:])))
