"""results/bench/HARDWARE.json: what was measured on one kind of machine; runs add to it, row by row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from flashcaps.training.checkpoint import write_atomic

from .workloads import NO_CAPSULES, large, table

PARTS = {"row": "rows", "sweep": "sweep", "large": "large"}
KEY = ("workload", "backend", "dtype")


def file_for(folder: Path, hardware: str) -> Path:
    """NVIDIA H200 -> h200.json."""
    name = re.sub(r"[^a-z0-9]+", "-", hardware.lower().replace("nvidia", "")).strip("-")
    return folder / f"{'cpu' if name.startswith('cpu') else name}.json"


def flat(row: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
    """A row as it is stored: the time that counts is the captured one, where there is one."""
    out = {"workload": row["workload"], "backend": row["backend"], "dtype": row["precision"]}
    for form in ("captured", "eager"):
        if form in row:
            out.setdefault("time_ms", row[form]["ms"])
            out[f"{form}_ms"] = row[form]["ms"]
            out[f"{form}_low_high_ms"] = [row[form]["low_ms"], row[form]["high_ms"]]
    dropped = ("kind", "workload", "backend", "precision", "eager", "captured")
    out |= {k: v for k, v in row.items() if k not in dropped}
    return out | {k: origin[k] for k in ("commit", "versions", "command")}


def merge(
    before: dict[str, Any], rows: list[dict[str, Any]], origin: dict[str, Any], toy: bool = False
) -> dict[str, Any]:
    """A record with rows measured anew: they replace those of the same workload, backend and dtype."""
    record = {**before, **origin}
    for kind, part in PARTS.items():
        new = [flat(row, origin) for row in rows if row["kind"] == kind]
        known = {tuple(row[k] for k in KEY): row for row in before.get(part, [])}
        known |= {tuple(row[k] for k in KEY): row for row in new}
        record[part] = list(known.values())
    for row in rows:
        if row["kind"] == "rates" and "failed" not in row:
            record["rates"] = {k: row[k] for k in ("bytes", "tf32", "bf16", "fp32")}
    add_floors(record, toy)
    return record


def add_floors(record: dict[str, Any], toy: bool) -> None:
    """Of layers from what is counted and the device's rates, of whole steps from the same without capsules."""
    works, rates = table(toy), record.get("rates")
    bare: dict[str, dict[str, float]] = {r["dtype"]: {} for r in record["rows"]}
    for row in record["rows"]:
        if row["backend"] == NO_CAPSULES and "time_ms" in row:
            bare[row["dtype"]][row["workload"]] = row["time_ms"]
    costs = {name: works[name].cost() for name in {row["workload"] for row in record["rows"]} if name in works}
    for row in record["rows"]:
        cost = costs.get(row["workload"])
        if cost is not None and rates is not None:
            row["floor_ms"] = round(cost.floor_ms(rates, row["dtype"]), 4)
        elif row["workload"] in bare[row["dtype"]]:
            row["floor_ms"] = bare[row["dtype"]][row["workload"]]
    record["workloads"] = {
        w.name: {"title": w.title, "batch": w.batch, "whole": w.whole, "goal": vars(w.goal)}
        for w in [*works.values(), *large(toy).values()]
    }


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def write(path: Path, record: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(record, indent=1) + "\n")
