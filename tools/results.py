"""The pages of results/ from the files in it: make results, or python -m tools.results [RUN ...]

README.md has the papers' tables (tools/tables.py), attempts.md all other runs, goals and trials; pages.toml has their
fixed words. Finished run folders that are named are added to results/runs first.
"""

import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from flashcaps.models.shipped import shipped_files
from flashcaps.models.stored import read_weights
from flashcaps.training.checkpoint import write_atomic

from .goals import make_goals
from .runs import Group, Groups, add_result, changes, read_groups, training_time, value_in_words
from .tables import Cell, Table, breaches, fill, lines, links, make_section, read_tables

RESULTS = Path(__file__).parents[1] / "results"


@cache
def words() -> dict[str, str]:
    return tomllib.loads((RESULTS / "pages.toml").read_text())


def make_page(results: Path) -> str:
    """results/README.md: a section for every paper, in it the paper's tables; then the shipped weights."""
    groups, tables = read_groups(results), read_tables(results)
    parts = [words()["readme"], lines(["table", "entries"], (_entries(table, fill(table, groups)) for table in tables))]
    for before, table, others in zip([None, *tables], tables, left_over(tables, groups), strict=False):
        parts += [f"## {table.paper}"] if before is None or before.paper != table.paper else []
        parts.append(make_section(table, groups))
        parts += [f"Runs in other settings: [{len(others)}](attempts.md#{anchor(heading(table))})."] if others else []
    return "\n\n".join(part.strip() for part in [*parts, words()["shipped"], make_shipped()]) + "\n"


def heading(table: Table) -> str:
    return f"{table.paper}: {table.title}"


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def _entries(table: Table, cells: list[Cell]) -> list[str]:
    run = sum(bool(cell.runs) for cell in cells)
    filled = "complete" if run == len(cells) else f"{run} of {len(cells)}"
    return [f"{table.paper}: [{table.title}](#{anchor(table.title)})", filled]


def left_over(tables: list[Table], groups: Groups) -> list[list[Group]]:
    """The runs of each table that no table shows; last, those of no table."""
    shown = {(run["recipe"], run["variant"]) for table in tables for cell in fill(table, groups) for run in cell.runs}
    left = {key: groups[key] for key in sorted(groups) if key not in shown}
    return [*([left.pop(key) for key in list(left) if key[0] in table.recipes] for table in tables), [*left.values()]]


def make_shipped() -> str:
    """What the headers of the weights say of them."""
    rows = []
    for name, path in shipped_files().items():
        config = read_weights(path)[1]
        result, stored, size = config["result"], config["result"]["stored"], path.stat().st_size / 2**20
        what = "% right" if "accuracy" in result["metric"] else "% wrong"
        rows.append([f"`{name}`", f"`{result['recipe']}`", result["data"], f"{result['parameters']:,}",
                     f"{size:.1f} MiB", f"{result['value']:.2f} {what}", value_in_words([stored])])  # fmt: skip
    return lines(["name", "recipe", "data", "parameters", "file", "as trained", "as stored"], rows)


def make_attempts(results: Path) -> str:
    """results/attempts.md: the runs that no table shows, by table; then goals and trials."""
    groups, tables, parts = read_groups(results), read_tables(results), [words()["attempts"]]
    for table, others in zip([*tables, None], left_over(tables, groups), strict=True):
        rows = [_attempt(table, runs) for runs in others]
        head = ["runs", "changed", "percent", "epochs", "parameters", "training time", "excluded because of"]
        parts += [f"## {heading(table) if table else 'Other runs'}", lines(head, rows)] if rows else []
    parts += [make_goals(results, groups), make_trials(results)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _attempt(table: Table | None, runs: Group) -> list[str]:
    first, why = runs[0], []
    if table is not None:
        row = next((row for row in table.row if first["recipe"] in row.recipes), table.row[0])
        why = breaches(table, row, runs)
    unit = "right" if "accuracy" in first["metric"] else "wrong"
    return [links(runs), changes(first) or "nothing", f"{value_in_words(runs)} {unit}", f"{first['epochs']:.3g}",
            f"{first['parameters']:,}", training_time(runs), "; ".join(why)]  # fmt: skip


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
    table = lines(["recipe", "changed", "held out", "epochs", "error"],
                  ([f"`{recipe}`", changed, held, f"{epochs:.4g}", f"{error:.2f}"]
                   for recipe, error, changed, held, epochs in sorted(rows)))  # fmt: skip
    return f"{words()['trials']}\n{table}" if rows else ""


def main() -> None:
    for run in sys.argv[1:]:
        print(add_result(Path(run), RESULTS))
    write_atomic(RESULTS / "README.md", make_page(RESULTS))
    write_atomic(RESULTS / "attempts.md", make_attempts(RESULTS))


if __name__ == "__main__":
    main()
