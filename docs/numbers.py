"""The parts of pages that are made from files: claims from the recipes, times from results/bench. python -m docs"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from flashcaps.recipe import list_recipes, read_recipe
from flashcaps.results import PAPERS

DOCS = Path(__file__).parent
BENCH = DOCS.parent / "results" / "bench"
NOTHING = "Not measured yet: `flashcaps bench` writes its file under `results/bench`, and `python -m docs` this table."


def claims() -> str:
    """One row per recipe that a paper's number belongs to, papers in order."""
    rows = ["| paper | recipe | what it is | the paper's |", "| --- | --- | --- | --- |"]
    recipes = [recipe for recipe in map(read_recipe, list_recipes()) if recipe.claim.value is not None]
    for recipe in sorted(recipes, key=lambda r: (_place(r.claim.paper), r.claim.paper, r.name)):
        rows.append(f"| {recipe.claim.paper} | `{recipe.name}` | {recipe.about} | {recipe.claim} |")
    return "\n".join(rows)


def _place(paper: str) -> int:
    first = paper.split(",")[0]
    return PAPERS.index(first) if first in PAPERS else len(PAPERS)


def cpu() -> str:
    from benchmarks.table import table

    return table(json.loads((BENCH / "cpu.json").read_text()))


def gpu() -> str:
    from benchmarks.table import on_gpu

    records = [json.loads(path.read_text()) for path in sorted(BENCH.glob("*.json")) if not path.name.startswith("cpu")]
    records = [record for record in records if record.get("rows") and "workloads" in record]
    return on_gpu(records) if records else NOTHING


SECTIONS: dict[str, Any] = {"reproduce.md": {"claims": claims}, "performance.md": {"cpu": cpu, "gpu": gpu}}


def filled(name: str) -> str:
    """A page with every section between its markers made anew."""
    text = (DOCS / name).read_text()
    for marker, make in SECTIONS[name].items():
        start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{name}: expected one {start} and one {end}")
        text = re.sub(f"{start}.*{end}", lambda _, m=make: f"{start}\n{m()}\n{end}", text, flags=re.S)  # noqa: B023
    return text
