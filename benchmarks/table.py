"""Tables and plots from the files of results/bench, for its README.md: python -m benchmarks.table

`python -m docs` puts some of them into other pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .plots import draw

FOLDER = Path(__file__).parents[1] / "results" / "bench"
HEADER = """# Benchmarks

`python -m benchmarks.table` makes this page from the JSON files in this folder, which `flashcaps bench` and the
commands below measured; nothing is typed by hand. [Performance](../../docs/performance.md) describes the backends.
"""
PLOTS = {"time": "Time of each workload by backend, with goal and floor", "sweep": "Time of one layer by each size",
         "memory": "Peak memory of one layer by each size, divided by the bytes that it must hold"}  # fmt: skip
ROWS = """\
*captured*: replayed from a CUDA graph. *of its bytes*: peak memory divided by the bytes of inputs, outputs, weights and
their gradients. *error*: norm of the difference from the fp64 reference, divided by the reference's norm."""
NOTE = """\
Times are milliseconds of a forward and backward pass without the optimiser, the median of many passes over several
inputs. Passes are replayed from a captured CUDA graph, except in columns marked eager. The precision is fp32 with TF32
products, or bf16 under autocast.

- *published public*: the fastest public code, repaired to run on one H200. *public style*: a layer that stores its
  votes, written by us and measured in the same run.
- *floor*: a lower bound, the counted bytes and operations divided by the rates measured on this GPU; for a whole step,
  the time of the same step without capsule layers. *goal*: the limit that this project aims at.
- *faster*: our fastest form in fp32, compared with the fastest public code (published, compiled or public style).
- *MiB*: peak memory in addition to weights and inputs, gradients included.
"""


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def origin(record: dict[str, Any], part: str = "rows") -> str:
    """Where a part of a record comes from; several runs can have added to it."""
    rows = record[part]
    commits, commands = ({row[key]: None for row in rows} for key in ("commit", "command"))
    several = f"{len(commands)} runs of `python -m benchmarks`; the JSON file has the commands"
    made = several if len(commands) > 1 else f"`{next(iter(commands))}`"
    listed = f"commit{'s' * (len(commits) > 1)} " + ", ".join(f"`{c[:13]}`" for c in commits)
    return f"{record['hardware']}, torch {record['versions']['torch']}, {listed}, made by {made}"


def table(record: dict[str, Any]) -> str:
    """One line per algorithm: each backend's time and memory, and how they compare with the public-style layer."""
    lines = [
        f"Forward + backward of one layer, fp32, {record['hardware']}, torch {record['versions']['torch']}, commit "
        f"`{record['commit'][:12]}`, made by `{record['command']}`:",
        "",
        "| layer | public style | reference | matrix | matrix is faster by | share of memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, work in record["workloads"].items():
        rows = {row["variant"]: row for row in record["rows"] if row["workload"] == name}
        if not rows:
            continue
        ordered = [rows[v] for v in ("public-style", "reference", "matrix")]
        cells = [f"{row['seconds']:.2f} s, {row['peak_mib']:,.0f} MiB" for row in ordered]
        faster = rows["public-style"]["seconds"] / rows["matrix"]["seconds"]
        memory = rows["matrix"]["peak_mib"] / rows["public-style"]["peak_mib"]
        layer = work["layer"]
        children = layer["in_capsules"] or "any number of"
        title = f"{name}, {children} -> {layer['out_capsules']}, batch {work['batch']}"
        lines.append(line([title, *cells, f"{faster:.1f} x", f"{memory:.0%}"]))
    return "\n".join(lines)


def ms(row: dict[str, Any] | None, form: str = "time") -> str:
    """0.123, or why there is no number."""
    if row is None:
        return ""
    if f"{form}_ms" not in row:
        return reason(row.get("failed", row.get("captured_error", "")))
    return number(row[f"{form}_ms"])


def number(x: float) -> str:
    return f"{x:.3g}" if x < 100 else f"{x:,.0f}"


def reason(text: str) -> str:
    """Why a row has no number, in a word or two; the JSON has all of it."""
    if text.startswith("out of memory"):
        return "out of memory"
    if "no 'triton' kernel" in text:
        return "no kernel"
    return "failed" if text else ""


def summary(record: dict[str, Any]) -> str:
    """A GPU's line per workload: times, floor, goal, and how many times faster than the fastest public code."""
    table = [["workload", "published public", "public style, eager", "matrix", "matrix, compiled", "triton, eager",
              "triton", "triton, bf16", "floor", "goal", "faster", "MiB", "goal MB"]]  # fmt: skip
    for name, work in record["workloads"].items():
        rows = {(r["backend"], r["dtype"]): r for r in record["rows"] if r["workload"] == name}
        if not rows:
            continue
        goal = work["goal"]
        public, best, theirs = rows.get(("public", "tf32")), fastest(rows), fastest_public(rows, goal)
        faster = f"{theirs / best:,.0f} x" if best and theirs else ""
        peak = peak_mib(rows)
        floors = [rows[k]["floor_ms"] for k in rows if k[1] == "tf32" and "floor_ms" in rows[k]]
        table.append([
            work["title"],
            published(goal),
            ms(public, "eager"),
            ms(rows.get(("matrix", "tf32"))),
            ms(rows.get(("matrix compiled", "tf32"))),
            ms(rows.get(("triton", "tf32")), "eager"),
            ms(rows.get(("triton", "tf32"))),
            ms(rows.get(("triton", "bf16"))),
            number(floors[0]) if floors else "",
            "" if goal["ms"] is None else f"<= {goal['ms']:g}",
            faster,
            "" if peak is None else f"{peak:,.0f}",
            "" if goal["mb"] is None else f"< {goal['mb']:,.0f}",
        ])  # fmt: skip
    measured = [k for k in range(len(table[0])) if any(cells[k] for cells in table[1:])]
    head, *body = ([cells[k] for k in measured] for cells in table)
    return "\n".join([f"{origin(record)}:", "", *map(line, (head, ["---"] * len(head), *body))])


class Headline(NamedTuple):
    """A workload in short: public code's fastest time and published memory, and ours in fp32."""

    title: str
    public_ms: float
    ours_ms: float
    public_gb: float | None
    ours_mib: float | None

    @property
    def faster(self) -> float:
        return self.public_ms / self.ours_ms


def headlines(record: dict[str, Any]) -> dict[str, Headline]:
    """The workloads of a GPU that public code was measured on, too."""
    found = {}
    for name, work in record["workloads"].items():
        rows = {(r["backend"], r["dtype"]): r for r in record["rows"] if r["workload"] == name}
        theirs, ours = fastest_public(rows, work["goal"]), fastest(rows)
        if theirs is not None and ours is not None:
            found[name] = Headline(work["title"], theirs, ours, work["goal"]["public_gb"], peak_mib(rows))
    return found


def short(record: dict[str, Any]) -> str:
    """One row per algorithm for the project's README: the slowest workload whose public memory is known, too."""
    slowest: dict[str, Headline] = {}
    for name, headline in headlines(record).items():
        kind = name.split("_")[0]
        if headline.public_gb and (kind not in slowest or headline.public_ms > slowest[kind].public_ms):
            slowest[kind] = headline
    rows = [line([h.title, f"{number(h.public_ms)} ms", f"{number(h.ours_ms)} ms", f"{h.faster:,.0f} x",
                  f"{h.public_gb:g} GB", f"{h.ours_mib or 0:,.0f} MiB"]) for h in slowest.values()]  # fmt: skip
    head = ["workload", "public code", "ours", "faster", "its memory", "ours"]
    return "\n".join([line(head), line(["---"] * len(head)), *rows])


def cheaper(record: dict[str, Any]) -> str:
    """What discriminative routing saves of dynamic's time (its paper's Fig. 4); "" where a row is missing."""
    times = {(r["workload"], r["backend"], r["dtype"]): r.get("time_ms") for r in record["rows"]}
    layer, other = (times.get((w, "triton", "tf32")) for w in ("discriminative_mnist", "dynamic_mnist"))
    step, whole = (times.get((w, "triton", "bf16")) for w in ("discriminative_step", "capsnet_mnist"))
    bare = times.get(("capsnet_mnist", "no capsules", "bf16"))
    if not (layer and other and step and whole and bare):
        return ""
    return (f"A layer of discriminative routing takes {1 - layer / other:.0%} less time than one of dynamic routing, 3 "
            f"iterations, and the whole\nstep in bf16 {1 - step / whole:.0%} less; the time that capsule layers add to "
            f"that step is {1 - (step - bare) / (whole - bare):.0%} less.")  # fmt: skip


def on_gpu(records: list[dict[str, Any]]) -> str:
    """The tables of some GPUs, what their columns are, and what one more sentence says of the first."""
    return "\n\n".join(part for part in (*map(summary, records), NOTE.rstrip(), cheaper(records[0])) if part)


def fastest(rows: dict[tuple[str, str], dict[str, Any]]) -> float | None:
    """ms of our fastest form in fp32."""
    ours = ("triton", "matrix", "matrix compiled", "triton compiled")
    found = [r["time_ms"] for (b, p), r in rows.items() if b in ours and p == "tf32" and "time_ms" in r]
    return min(found, default=None)


def fastest_public(rows: dict[tuple[str, str], dict[str, Any]], goal: dict[str, Any]) -> float | None:
    """ms of public code, published, compiled or written afresh."""
    measured = rows.get(("public", "tf32"), {}).get("eager_ms")
    return min((x for x in (goal["public_ms"], goal["compiled_ms"], measured) if x is not None), default=None)


def peak_mib(rows: dict[tuple[str, str], dict[str, Any]]) -> float | None:
    """Of our kernels, or of the matrix form where they did not run."""
    ours = rows.get(("triton", "tf32"), {})
    return (ours if "time_ms" in ours else rows.get(("matrix", "tf32"), {})).get("peak_mib")


def published(goal: dict[str, Any]) -> str:
    if goal["public_ms"] is None:
        return ""
    memory = "" if goal["public_gb"] is None else f", {goal['public_gb']:g} GB"
    compiled = "" if goal["compiled_ms"] is None else f"; compiled {goal['compiled_ms']:g}"
    return f"{goal['public_ms']:g}{memory}{compiled}"


def every_row(record: dict[str, Any]) -> str:
    lines = [
        "| workload | backend | precision | captured ms | eager ms | floor ms | MiB | of its bytes | error | |",
        line(["---"] * 10),
    ]
    for row in record["rows"]:
        error, share, peak = row.get("error_of_output"), row.get("of_bytes"), row.get("peak_mib")
        lines.append(line([
            row["workload"], row["backend"], row["dtype"], ms(row, "captured"), ms(row, "eager"),
            number(row["floor_ms"]) if "floor_ms" in row else "",
            "" if peak is None else f"{peak:,.0f}",
            "" if share is None else f"{share:.2f} x",
            "" if error is None else f"{error:.0e}",
            row.get("failed", row.get("captured_error", "")).replace("|", "/"),
        ]))  # fmt: skip
    return "\n".join(lines)


def large_table(record: dict[str, Any]) -> str:
    """Training steps at large batches."""
    lines = ["| training step | backend | precision | peak GB | goal | step ms |", line(["---"] * 6)]
    for row in record["large"]:
        work = record["workloads"][row["workload"]]
        peak = f"{row['peak_gb']:.1f}" if "peak_gb" in row else reason(row.get("failed", ""))
        lines.append(line([
            work["title"], row["backend"], row["dtype"], peak, f"< {work['goal']['mb'] / 1000:g}",
            number(row["step_ms"]) if "step_ms" in row else "",
        ]))  # fmt: skip
    return "\n".join(lines)


def page(record: dict[str, Any], pictures: list[str]) -> str:
    """The part of results/bench/README.md about one kind of GPU."""
    parts = [f"## {record['hardware']}" + ", growth with size" * (not record.get("rows"))]
    if record.get("rows"):
        parts.append(on_gpu([record]))
    if record.get("large"):
        parts += ["Training steps with Adam at large batches; the peak is all allocated memory:", large_table(record)]
    parts += [f"![{PLOTS[name.split('-')[-1]]}]({name}.png)" for name in pictures]
    if record.get("rows"):
        parts += [f"<details><summary>Every row</summary>\n\n{ROWS}", every_row(record), "</details>"]
    return "\n\n".join(parts)


def write_tables(folder: Path = FOLDER, log: Callable[[str], None] = print) -> None:
    """README.md of the folder and its plots."""
    parts = [HEADER.rstrip()]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if path.name == "cpu.json":
            parts.append(f"## {record['hardware']}, compared with public code\n\n{table(record)}")
        elif "workloads" in record:
            parts.append(page(record, draw(record, folder, path.stem, log)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    write_tables()
