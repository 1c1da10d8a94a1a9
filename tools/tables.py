"""The tables of results/README.md: results/tables.toml names the runs that fill their cells and their protocols.

A run is a recipe with its overrides, `ensemble=7` for seven models together. It is shown if it follows the protocol.
"""

import html
import math
import shlex
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import torch

from flashcaps.models import create_model
from flashcaps.training.recipe import Claim, Recipe, read_override, read_recipe

from .runs import Group, Groups, as_metric, chance, changed, gain, is_full, mean, training_time, value_in_words

NOT_RUN = "not run yet"
FACTS = ("epochs", "parameters", "training time", "ms per step", "runs")
NEAREST, T_NEAREST = 8, 2.447  # evaluations, and Student's 97.5 % point of a line through them
MATCHED = (" Both errors are measured at every evaluation; nothing is chosen on {1}. *Matched* compares two networks "
           f"at equal error on {{0}}, the larger of their final ones, by a line fitted to the {NEAREST} nearest "
           "evaluations; ± is half of its 95 % interval.")
VIEWS = {1: "one view of each test example", 2: "mean score of each test image and its mirror image"}


@cache
def recipe_of(spec: str, *overrides: str) -> Recipe:
    """The recipe that a run names, without the overrides named there."""
    return read_recipe(spec.split()[0], overrides)


@cache
def parameters_of(name: str, *overrides: str) -> int:
    """Of the network that a recipe builds today; 0 where that depends on data, as with a transformer's states."""
    recipe = recipe_of(name, *overrides)
    if recipe.data.transformer:
        return 0
    with torch.device("meta"):  # no weight is allocated
        return sum(p.numel() for p in create_model(recipe.model.name, **recipe.model.overrides).parameters())


@dataclass(frozen=True)
class Row:
    name: str
    runs: Sequence[str]
    overrides: str = ""
    against: str = ""
    seeds: int = 0
    note: str = ""
    readme: Sequence[int] = ()

    @property
    def specs(self) -> list[str]:
        """What fills each cell, a recipe and its overrides; "" where the paper has no number."""
        return [f"{run} {self.overrides}".strip() if run else "" for run in self.runs]

    @property
    def recipes(self) -> set[str]:
        return {run.split()[0] for run in self.runs if run}


@dataclass(frozen=True)
class Table:
    paper: str
    title: str
    protocol: str
    row: Sequence[Row]
    columns: Sequence[str] = ("",)
    epochs: float = 0
    paper_epochs: float = 0
    paper_select: str = ""
    seeds: int = 1
    select: str = "last"
    views: int = 1
    matched: Sequence[str] = ()
    gain: bool = False
    also: Sequence[str] = ()
    turn: int = 99

    @property
    def recipes(self) -> set[str]:
        """Those whose runs belong to this table, shown or not."""
        return {*self.also}.union(*(row.recipes for row in self.row))

    def seeds_of(self, row: Row) -> int:
        return row.seeds or self.seeds

    @property
    def metric(self) -> str:
        return "test_error_percent" if self.matched else recipe_of(self.row[0].runs[0]).claim.metric

    @property
    def better(self) -> int:
        """1 where more is better, of accuracies; -1 of errors."""
        return 1 if "accuracy" in self.metric else -1

    @property
    def unit(self) -> str:
        return "% right" if self.better > 0 else "% wrong"

    def __str__(self) -> str:
        """The protocol in words."""
        seeds = " or ".join(str(n) for n in sorted({*map(self.seeds_of, self.row)}))
        paper = f" (the paper: {self.paper_epochs:g} epochs)" * bool(self.paper_epochs)
        epochs = f"at least {self.epochs:g} epochs" if self.epochs else "the whole schedule of the recipe"
        chosen = "final weights" if self.select == "last" else f"weights that are best on {self.select} data"
        kept = [epochs + paper, f"{seeds} seed{'s' * (seeds != '1')}", f"the {chosen} are tested",
                VIEWS.get(self.views, f"mean score of {self.views} views of each test image")]  # fmt: skip
        matched = MATCHED.format(*self.matched) if self.matched else ""
        return f"{' '.join(self.protocol.split())} Every run: {'; '.join(kept)}.{matched}"


class Cell(NamedTuple):
    """One number of a table. runs: its seeds, none if no run follows the protocol."""

    row: Row
    column: int
    spec: str
    runs: Group

    @property
    def claim(self) -> Claim:
        return recipe_of(self.spec).claim


def read_entries(path: Path, name: str) -> list[dict[str, Any]]:
    """The tables [[name]] of a TOML file; none where there is no such file."""
    return list(tomllib.loads(path.read_text())[name]) if path.is_file() else []


def read_tables(results: Path) -> list[Table]:
    """results/tables.toml; none where there is no such file."""
    entries = read_entries(results / "tables.toml", "table")
    return [Table(**entry | {"row": [Row(**row) for row in entry["row"]]}) for entry in entries]


def breaches(table: Table, row: Row, runs: Group) -> list[str]:
    """What in these runs, seeds of one setting, is not as the table says; nothing where all of it is."""
    first, seeds, epochs = runs[0], table.seeds_of(row), min(run["epochs"] for run in runs)
    train = recipe_of(first["recipe"], *first["overrides"]).train
    views = (1 + train.mirror) * (5 if train.nudge else 1)
    selects = "test" if any(run["split"] != "test" for run in runs) else train.select
    short = epochs < table.epochs if table.epochs else not is_full(recipe_of(first["recipe"]), runs)
    found = {
        f"{epochs:.3g} epochs": short or epochs < table.paper_epochs / 10,
        f"{len(runs)} of {seeds} seeds": len(runs) < seeds,
        "final weights" if selects == "last" else f"weights chosen on {selects} data": selects != table.select,
        f"{views} view{'s' * (views > 1)} of a test image": views != table.views,
        "no test error at evaluations": table.matched and sum("test_error" in x for x in first["curve"]) < NEAREST,
    }
    said = [breach for breach, wrong in found.items() if wrong]
    said += sorted({f"an earlier version ({run['earlier']})" for run in runs if "earlier" in run})
    today = 0 if said else parameters_of(first["recipe"], *first["overrides"]) * len(first.get("members", "1"))
    return said or [f"today's network has {today:,} parameters"] * (today not in (0, first["parameters"]))


def find_runs(spec: str, groups: Groups) -> Group:
    """The runs of a recipe with exactly these overrides, in any order; ensemble=7 is that of seven models."""
    name, *overrides = shlex.split(spec)
    wanted = sorted(map(read_override, overrides))
    for (recipe, _), runs in groups.items():
        if recipe == name and sorted(map(read_override, changed(runs[0]))) == wanted:
            return runs
    return []


def fill(table: Table, groups: Groups) -> list[Cell]:
    """All cells of a table that something is named for, row by row."""
    cells = []
    for row in table.row:
        for column, spec in enumerate(row.specs):
            runs = find_runs(spec, groups) if spec else []
            kept = [] if not runs or breaches(table, row, runs) else as_metric(runs, table.metric)
            cells += [Cell(row, column, spec, kept)] if spec else []
    return cells


def rivals(cells: list[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Every cell with the one its row is to be compared with, where both were run."""
    for cell in cells:
        for other in cells:
            if other.row.name == cell.row.against and other.column == cell.column and cell.runs and other.runs:
                yield cell, other


class Novel(NamedTuple):
    """The error on novel data at one on familiar data, and half of its 95 % interval."""

    error: float
    half: float


def match(run: dict[str, Any], other: dict[str, Any]) -> tuple[float, Novel, Novel]:
    """The larger of two last errors on familiar data, and what each run has on novel data at it."""
    level = max(one["curve"][-1]["error"] for one in (run, other))
    return level, novel_at(level, run["curve"]), novel_at(level, other["curve"])


def novel_at(level: float, curve: list[dict[str, Any]]) -> Novel:
    """Of a line through the evaluations nearest to the level, over the logarithm of the error on familiar data."""
    points = [(math.log(max(point["error"], 0.01) / level), point["test_error"]) for point in curve]
    x, y = zip(*sorted(points, key=lambda point: abs(point[0]))[:NEAREST], strict=True)
    slope, here = statistics.linear_regression(x, y)
    variance = sum((b - here - slope * a) ** 2 for a, b in zip(x, y, strict=True)) / (NEAREST - 2)
    share = 1 / NEAREST + statistics.fmean(x) ** 2 / (NEAREST * statistics.pvariance(x))
    return Novel(here, T_NEAREST * math.sqrt(variance * share))


class Lead(NamedTuple):
    """The numbers of a network and of its rival, and half of a 95 % interval of their difference."""

    own: float
    its: float
    ahead: float
    half: float

    @property
    def verdict(self) -> str:
        return "level" if abs(self.ahead) <= self.half else "ahead" if self.ahead > 0 else "behind"


def lead(table: Table, cell: Cell, other: Cell) -> Lead:
    """How far a cell is ahead of its rival; where errors are matched, at one error on familiar data."""
    own, its, halves = mean(cell.runs), mean(other.runs), [chance(cell.runs), chance(other.runs)]
    if table.matched:
        _, *novels = match(cell.runs[0], other.runs[0])
        own, its, halves = novels[0].error, novels[1].error, [*halves, *(x.half for x in novels)]
    return Lead(own, its, table.better * (own - its), math.hypot(*halves))


def make_section(table: Table, groups: Groups) -> str:
    """The protocol in words, the table, and its commands."""
    cells = fill(table, groups)
    make = _matched if table.matched else _grid if len(table.columns) > 1 else _list
    return "\n\n".join([f"### {table.title}", str(table), make(table, cells), _commands(cells)])


def lines(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def label(table: Table, cell: Cell) -> str:
    return ", ".join(filter(None, (cell.row.name, table.columns[cell.column])))


def claimed(table: Table, cell: Cell) -> float | None:
    """The paper's number, as accuracy or as error, whichever the table has."""
    claim = cell.claim
    return claim.value if claim.value is None or claim.metric == table.metric else 100 - claim.value


def paper_number(table: Table, cell: Cell) -> str:
    """The paper's, with what a reader must know to compare with it."""
    value, on = claimed(table, cell), cell.claim.on
    beside = [cell.row.note, "best test epoch" * (table.paper_select == "test")]
    said = "".join(f" ({words})" for words in beside if words)
    return "" if value is None else f"{value:.4g}" + f" on {on}" * bool(on) + said


def our_number(table: Table, cell: Cell) -> str:
    """Ours, bold where the mean, as printed, is as good as the paper's; a stand-in for its data is not compared."""
    if not cell.runs:
        return NOT_RUN
    theirs, ours, words = claimed(table, cell), round(mean(cell.runs), 2), value_in_words(cell.runs)
    if theirs is None or cell.claim.on:
        return words
    return f"**{words}**" if table.better * (ours - theirs) >= 0 else words


def links(runs: Group, folder: str = "") -> str:
    """The files of the runs: settings, command, commit, hardware, curve."""
    paths = [f"{folder}runs/{run['recipe']}/{quote(run['variant'], '=,')}-{run['seed']}.json" for run in runs]
    names = [f"`{runs[0]['recipe']}`", *(str(run["seed"]) for run in runs[1:])]
    return ", ".join(f"[{name}]({path})" for name, path in zip(names, paths, strict=True))


def _list(table: Table, cells: list[Cell]) -> str:
    """A line each; the paper's numbers where it has any."""
    known = any(cell.claim.value is not None for cell in cells)
    rows = ([label(table, cell), *[paper_number(table, cell)] * known, our_number(table, cell), *_facts(cell)]
            for cell in cells)  # fmt: skip
    return lines(["", *["the paper's"] * known, f"ours, {table.unit}", *FACTS], rows)


def _facts(cell: Cell) -> list[str]:
    """What FACTS names."""
    if not cell.runs:
        return [""] * len(FACTS)
    first, batch = cell.runs[0], recipe_of(cell.runs[0]["recipe"], *cell.runs[0]["overrides"]).train.batch
    step = statistics.fmean(1000 * run["wall_s"] * batch / run["images"] for run in cell.runs)
    return [f"{first['epochs']:.3g}", f"{first['parameters']:,}", training_time(cell.runs), f"{step:.2f}",
            links(cell.runs)]  # fmt: skip


def _grid(table: Table, cells: list[Cell]) -> str:
    """As in the paper, a line for each row; then a line for each cell that was run."""
    rows = []
    for row in table.row:
        texts, own = [""] * len(table.columns), [cell for cell in cells if cell.row is row]
        for cell in own:
            theirs = claimed(table, cell)
            texts[cell.column] = f"{mean(cell.runs):.2f}" if cell.runs else "not run"
            texts[cell.column] += "" if theirs is None else f" ({theirs:.4g})"
        if table.gain:
            both = own[0].runs and own[-1].runs
            texts.append("{:.2f} ({:.2f} to {:.2f})".format(*gain(own[0].runs, own[-1].runs)) if both else "")
        rows.append([row.name, *texts])
    known = " (and the paper's)" * any(cell.claim.value is not None for cell in cells)
    head = [f"{table.unit}, ours{known}", *table.columns, *["reduction, 95 % interval"] * table.gain]
    run = [cell for cell in cells if cell.runs]
    return lines(head, rows) + (f"\n\n{_list(table, run)}" if run else "")


def _matched(table: Table, cells: list[Cell]) -> str:
    """Both errors of the last weights; those of a network and its rival where they have one error on familiar data."""
    familiar, novel = table.matched
    head = ["% wrong", "the paper's", f"final, {familiar}", f"final, {novel}", f"matched, {familiar}",
            f"matched, {novel}", "compared with", f"its {novel}"]  # fmt: skip
    others = {cell.row.name: other for cell, other in rivals(cells)}
    rows = []
    for cell in cells:
        last, then, other = [NOT_RUN, ""], [""] * 4, others.get(cell.row.name)
        if cell.runs:
            last = [f"{cell.runs[0]['curve'][-1][part]:.2f}" for part in ("error", "test_error")]
        if other is not None:
            level, *novels = match(cell.runs[0], other.runs[0])
            own, its = (f"{x.error:.2f} ± {x.half:.2f}" for x in novels)
            then = [f"{level:.2f}", own, other.row.name, its]
        rows.append([cell.row.name, paper_number(table, cell), *last, *then, *_facts(cell)])
    points = [f"{cell.row.name}: " + ", ".join(f"{x['error']:.2f} {x['test_error']:.2f}" for x in cell.runs[0]["curve"])
              for cell in cells if cell.runs]  # fmt: skip
    folded = [_folded(f"All evaluations: error on {familiar}, on {novel}", points)] * bool(points)
    return "\n\n".join([lines([*head, *FACTS], rows), *folded])


def _commands(cells: list[Cell]) -> str:
    """Folded: what to type for each cell, and with which seeds, where and at which commit it was run."""
    texts = []
    for cell in cells:
        seeds = f"seed{'s' * (len(cell.runs) > 1)} {', '.join(str(run['seed']) for run in cell.runs)}"
        places = sorted({f"{run['hardware']} at {run['commit'][:12]}" for run in cell.runs})
        command = "evaluate RUNS --ensemble" if "ensemble=" in cell.spec else f"train {cell.spec}"
        texts.append(f"flashcaps {command}  # {'; '.join([seeds, *places]) if places else 'not run yet'}")
    return _folded("Commands", texts)


def _folded(title: str, texts: list[str]) -> str:
    said = html.escape("\n".join(texts), quote=False)
    return f"<details><summary>{title}</summary><pre>\n{said}\n</pre></details>"
