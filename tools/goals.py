"""The goals in results/goals.toml: what entries of the tables must reach.

    [[goal]]
    table = "Table II"                # its title
    row = "MNIST"                     # all rows where none is named
    columns = ["L2, no FC"]           # all columns where none is named
    at_most = 0.35                    # percent, as the table has it; or at_least

Instead of a limit, `of_paper = 2` asks for a number at most two points worse than the paper's, and `ahead = 13` for a
row that is so many points ahead of its rival, and by more than chance. `entries` is how many of the entries must do so,
one without it. `within_s` bounds the training time, too; a run that shared its device does not count then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .runs import Group, Groups, as_metric, changes, mean, training_time, value_in_words
from .tables import Cell, Table, breaches, claimed, fill, lead, read_entries, read_tables, rivals

HEADER = """## Goals

Each line is a goal of `goals.toml` for entries of the [tables](README.md): *reached*, *missed*, or *open* if a run is
missing. Only runs that follow the table's protocol count. If a goal is not reached and another run is better, that run
is named as the best attempt. "Lead" is the difference from the compared network with its 95 % interval.
"""
KINDS = {"at_most": "at most {:g} %", "at_least": "at least {:g} %", "of_paper": "within {:g} points of the paper's",
         "ahead": "ahead of {1} by at least {0:g} points and by more than chance"}  # fmt: skip


@dataclass(frozen=True)
class Goal:
    table: str
    row: str = ""
    columns: Sequence[str] = ()
    at_most: float | None = None
    at_least: float | None = None
    of_paper: float | None = None
    ahead: float | None = None
    entries: int = 1
    within_s: float = 0
    note: str = ""

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"goal of {self.table!r}: expected one of {', '.join(KINDS)}, got {given or 'none'}")

    def choose(self, table: Table, cells: list[Cell]) -> list[Cell]:
        """The entries that it is for."""
        columns = self.columns or table.columns
        return [c for c in cells if self.row in ("", c.row.name) and table.columns[c.column] in columns]

    def is_met(self, table: Table, cell: Cell, cells: list[Cell]) -> bool | None:
        """Whether an entry does what is asked; None where it, or its rival among `cells`, was not run."""
        others = [other for own, other in rivals(cells) if own is cell]
        if not cell.runs or (self.ahead is not None and not others):
            return None
        if self.within_s and any(run["wall_s"] > self.within_s or run.get("beside") for run in cell.runs):
            return False
        value = round(mean(cell.runs), 2)
        if self.ahead is not None:
            found = lead(table, cell, others[0])
            return found.verdict == "ahead" and found.ahead >= self.ahead
        if self.of_paper is not None:
            theirs = claimed(table, cell)
            return theirs is not None and table.better * (theirs - value) <= self.of_paper
        return value <= self.at_most if self.at_most is not None else value >= (self.at_least or 0)


def read_goals(results: Path) -> list[Goal]:
    """results/goals.toml; none where there is no such file."""
    return [Goal(**entry) for entry in read_entries(results / "goals.toml", "goal")]


def make_goals(results: Path, groups: Groups) -> str:
    """The section of results/attempts.md: a line for every goal."""
    tables = {table.title: table for table in read_tables(results)}
    told = [make_line(goal, tables[goal.table], groups) for goal in read_goals(results)]
    return "\n".join([HEADER, *told]) if told else ""


def make_line(goal: Goal, table: Table, groups: Groups) -> str:
    """What is asked for, whether it was reached, and by what."""
    cells = fill(table, groups)
    chosen = goal.choose(table, cells)
    met = [goal.is_met(table, cell, cells) for cell in chosen]
    reached = met.count(True) >= goal.entries
    verdict = "reached" if reached else "open" if None in met else "missed"
    if len(chosen) > 1:
        verdict += f" (met by {met.count(True)}{f', {met.count(None)} not run' * (None in met)})"
    said = [verdict, *(best_runs(table, chosen, groups, reached) if goal.entries == 1 else ())]
    if goal.ahead is not None:
        leads = [lead(table, cell, other) for cell, other in rivals(cells) if cell in chosen]
        said += [f"Lead: {x.ahead:+.2f} ± {x.half:.2f} points ({x.verdict})" for x in leads]
    note = " ".join(goal.note.split())
    return f"- **{title(goal, table, chosen)}**: {'. '.join(said)}." + f" {note}" * bool(note)


def best_runs(table: Table, chosen: list[Cell], groups: Groups, reached: bool) -> Iterator[str]:
    """The best entry; and the best of all runs of the same recipes, unless the goal is reached or it is that entry."""
    rows = {cell.spec.split()[0]: cell.row for cell in chosen}
    shown = sorted((cell.runs for cell in chosen if cell.runs), key=lambda runs: -table.better * mean(runs))
    yield from (f"Ours: {describe(table, runs)}" for runs in shown[:1])
    tried = [as_metric(runs, table.metric) for (recipe, _), runs in groups.items() if recipe in rows]
    best = max(tried, key=lambda runs: table.better * mean(runs), default=[])
    if best and best not in shown and not reached:
        why = "; ".join(breaches(table, rows[best[0]["recipe"]], best)) or "another setting"
        yield f"The best attempt: {describe(table, best)}; excluded because of: {why}"


def describe(table: Table, runs: Group) -> str:
    said = f"{value_in_words(runs)} {table.unit} by `{runs[0]['recipe']}`, changed: {changes(runs[0]) or 'nothing'}"
    return f"{said}; {training_time(runs)}"


def title(goal: Goal, table: Table, chosen: list[Cell]) -> str:
    """What is asked for, in words."""
    row, many = chosen[0].row, f"{goal.entries} of {len(chosen)} entries " * (len(chosen) > 1)
    seeds = table.seeds_of(row)
    limit = next(words.format(getattr(goal, kind), row.against) for kind, words in KINDS.items()
                 if getattr(goal, kind) is not None)  # fmt: skip
    asked = [", ".join(filter(None, (goal.row, " or ".join(goal.columns)))), many + limit,
             f"in {goal.within_s:g} s" * bool(goal.within_s), f"mean of {seeds} seeds" * (seeds > 1)]  # fmt: skip
    return f"{chosen[0].claim.paper.split(',')[0]}, {table.title}: {'; '.join(filter(None, asked))}"
