"""Prints the runs that the tables of results/ still lack: make queue, or python -m tools.pending [WORD ...]

A line is "NAME: arguments of flashcaps train"; NAME is the name of the run's folder. Tables come in the order of their
`turn`; words choose those whose paper or title has one of them. A comment behind a line estimates its time from a
stored run of the same network, with "shared" if that run shared its device. The trainings of an ensemble's members are
followed by a comment with the command that tests them as one.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from flashcaps.training.recipe import Recipe, list_recipes
from flashcaps.training.run_folder import run_name

from .results import RESULTS, heading
from .runs import Group, Groups, read_groups
from .tables import Cell, Table, breaches, fill, find_runs, read_tables, recipe_of


def make_queue(results: Path, *words: str) -> list[str]:
    """The lines; a run that two tables lack has one."""
    known = {*list_recipes()}
    groups = {key: runs for key, runs in read_groups(results).items() if key[0] in known}
    tables = sorted(read_tables(results), key=lambda table: table.turn)
    named = {word: [table for table in tables if word.lower() in heading(table).lower()] for word in words}
    for word, found in named.items():
        if not found:
            raise SystemExit(f"{word}: expected a part of a paper or title in {results / 'tables.toml'}")
    chosen = [table for table in tables if not words or any(table in found for found in named.values())]
    cells = [(table, cell) for table in chosen for cell in fill(table, groups) if not cell.runs]
    return list(dict.fromkeys(line for table, cell in cells for line in make_lines(table, cell, groups)))


def make_lines(table: Table, cell: Cell, groups: Groups) -> Iterator[str]:
    """The missing runs of a cell. An ensemble needs the weights of its members, so all of them are trained."""
    spec, _, members = cell.spec.partition(" ensemble=")
    name, *overrides = spec.split()
    seeds = [*range(int(members))] if members else missing_seeds(table, cell, find_runs(spec, groups))
    names = [run_name(recipe_of(name, *overrides, f"train.seed={seed}")) for seed in seeds]
    time = estimate(recipe_of(name, *overrides), groups)
    yield from (f"{own}: {spec} --seed {seed}{time}" for own, seed in zip(names, seeds, strict=True))
    if members:
        yield f"# flashcaps evaluate {' '.join(f'runs/{own}' for own in names)} --ensemble --keep results"


def missing_seeds(table: Table, cell: Cell, runs: Group) -> list[int]:
    """Seeds of stored runs that break the protocol and so keep out the others, then as many new ones as are needed."""
    broken = [run["seed"] for run in runs if breaches(table, replace(cell.row, seeds=1), [run])]
    stored = {run["seed"] for run in runs}
    unused = (seed for seed in count() if seed not in stored)
    return [*broken, *islice(unused, max(table.seeds_of(cell.row) - len(stored), 0))]


def estimate(recipe: Recipe, groups: Groups) -> str:
    """Prefers a run that had its device alone, then one of today's recipe and the same batch, then the longest."""
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
    return f"  # about {run['wall_s'] * images / run['images']:.0f} s" + " (shared)" * beside


def network(recipe: Recipe) -> tuple[Any, ...]:
    """What the time of an image depends on. Initialisation and options of routing change it little."""
    changes = {key: x for key, x in recipe.model.overrides.items() if key not in ("original", "options")}
    return recipe.model.name, changes, recipe.data.name, recipe.data.options


if __name__ == "__main__":
    print("\n".join(make_queue(RESULTS, *sys.argv[1:])))
