"""The numbers of docs/scaling.md, from results/bench/*.json: python -m docs.scaling"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from flashcaps.training.distributed import BUCKET

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
PAGE = DOCS / "scaling.md"
AXES = ("I", "J", "D", "iterations", "batch", "image")
GIB, MIB = 1 << 30, 1 << 20

# What nobody measured here: sizes of the data set and of the backbone, and what the hardware's makers say.
IMAGES, KILOBYTES, EPOCHS = 1_281_167, 110, 90
BACKBONE_PARAMETERS, BACKBONE_FLOP = 8_543_296, 3 * 2 * 3.3e9  # a ResNet-50 up to 14 x 14; forward and backward
BACKBONE_MIB = 60.0  # activations an image, bf16
USED = 0.4  # of the device's measured bf16 rate, by convolutions
BACKWARD = 2 / 3  # of a step's computation
MEMORY, NVLINK, NETWORK = 141e9, 450e9, 50e9  # bytes of a GPU; bytes/s within a machine, and from each GPU out of it
CLUSTERS = ((8, 128), (256, 32))  # GPUs, images on each


class Layer(NamedTuple):
    """Capsules of C rows of d numbers in, C rows of h out; `places` of a convolutional layer route by themselves."""

    name: str
    places: int
    children: int
    parents: int
    rows: int = 4
    d: int = 4
    h: int = 4

    @property
    def votes(self) -> int:
        """Numbers in all votes of one image."""
        return self.places * self.children * self.parents * self.rows * self.h

    @property
    def weights(self) -> int:
        return self.children * self.parents * self.d * self.h

    @property
    def kept(self) -> int:
        """Numbers a layer keeps of one image: children as they were unfolded, parents, and the gradients of both."""
        return 2 * self.places * (self.children * self.rows * self.d + self.parents * self.rows * self.h)


# The attention network at 224 px: 14 x 14 places of 32 types of 4 x 4 poses, two 3 x 3 layers, a thousand classes.
IMAGENET = (
    Layer("3 x 3, stride 2, 32 -> 32 types, 6 x 6 places", 36, 9 * 32, 32),
    Layer("3 x 3, 32 -> 32 types, 4 x 4 places", 16, 9 * 32, 32),
    Layer("class layer, 512 -> 1,000", 1, 512, 1000),
)
ITERATIONS = 2


class Rate(NamedTuple):
    """Nanoseconds for one number of one vote in one iteration, forward and backward; and the bf16 rate, where known."""

    hardware: str
    nanoseconds: float
    flops: float | None = None
    gpu: bool = False


def records(folder: Path = RESULTS / "bench") -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [r for r in found if isinstance(r, dict) and "hardware" in r]


def ran(row: dict[str, Any]) -> bool:
    return "time_ms" in row and not row.get("failed")


# ---- how cost grows


def exponent(points: list[tuple[float, float]]) -> float | None:
    """k of cost ~ size^k, through the larger half of the points, where constant costs count least."""
    half = sorted(points)[len(points) // 2 :] if len(points) > 3 else sorted(points)
    if len(half) < 2 or min(y for _, y in half) <= 0:
        return None
    x, y = ([math.log(v) for v in column] for column in zip(*half, strict=True))
    mx, my = statistics.fmean(x), statistics.fmean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def growth(found: Iterable[dict[str, Any]]) -> str:
    """A table per kind of machine: what doubling each size does to time and memory."""
    tables = [table for record in found if (table := growth_of(record))]
    if not tables:
        return "Sweeps are not measured yet: `flashcaps bench --sweep --save results/bench`, `python -m docs.scaling`."
    return "\n\n".join(tables)


def growth_of(record: dict[str, Any]) -> str:
    sweeps: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in record.get("sweep", []):
        routing, axis, _ = row["workload"].split("/")
        if ran(row):
            sweeps.setdefault((routing, row["backend"]), {}).setdefault(axis, []).append(row)
    if not sweeps:
        return ""
    rows = (row for axes in sweeps.values() for some in axes.values() for row in some)
    commits = ", ".join(f"`{c}`" for c in {row.get("commit", record["commit"]): None for row in rows})
    lines = [f"{record['hardware']}, commit {commits}: doubling multiplies time (and peak memory) by", "",
             "| layer | " + " | ".join(AXES) + " |", "| --- |" + " --- |" * len(AXES)]
    for (routing, backend), axes in sorted(sweeps.items()):
        lines.append(f"| {routing}, `{backend}` | " + " | ".join(doubled(axes.get(axis, [])) for axis in AXES) + " |")
    return "\n".join(lines)


def doubled(rows: list[dict[str, Any]]) -> str:
    sizes = [float(row["workload"].split("/")[2]) for row in rows]
    cells = []
    for key in ("time_ms", "peak_mib"):
        k = exponent([(x, float(row[key])) for x, row in zip(sizes, rows, strict=True) if row.get(key)])
        cells.append("" if k is None else f"{2**k:.2f}")
    return "" if not cells[0] else cells[0] + (f" ({cells[1]})" if cells[1] else "")


# ---- what one vote costs


def rates(found: Iterable[dict[str, Any]]) -> list[Rate]:
    """Attention's cost of a vote on each kind of machine, from the largest layer measured there."""
    out = []
    for record in found:
        flops = (record.get("rates") or {}).get("bf16")
        points = [(votes_of(row["workload"]), row) for row in record.get("sweep", [])
                  if ran(row) and row["workload"].startswith("attention/") and "/image/" not in row["workload"]]
        if points:
            votes, row = max(points, key=lambda p: p[0])
            out.append(Rate(record["hardware"], 1e6 * row["time_ms"] / votes, flops, "CPU" not in record["hardware"]))
            continue
        layer = record.get("workloads", {}).get("attention", {})
        seconds = [r["seconds"] for r in record.get("rows", []) if r.get("variant") == "matrix"
                   and r["workload"] == "attention"]
        if seconds and "layer" in layer:
            size = layer["layer"]
            votes = layer["batch"] * size["in_capsules"] * size["out_capsules"] * size["out_dim"] * size["iterations"]
            out.append(Rate(record["hardware"], 1e9 * seconds[0] / votes))
    return out


def votes_of(name: str) -> int:
    """B x I x J x D x iterations of a point "attention/I/1024" of the sweeps."""
    from benchmarks.sweeps import BASE

    routing, axis, value = name.split("/")
    return math.prod({**BASE[routing], axis: int(value)}.values())


# ---- ImageNet


def counts() -> str:
    rows = [(layer.name, layer.votes, layer.kept, layer.weights) for layer in IMAGENET]
    rows.append(("together", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    lines = ["| layer | numbers in votes, an image | stored once, fp32 | kept here | weights |",
             "| --- | --- | --- | --- | --- |"]
    for name, votes, kept, weights in rows:
        lines.append(f"| {name} | {votes:,} | {4 * votes / MIB:.1f} MiB | {4 * kept / MIB:.2f} MiB | {weights:,} |")
    return "\n".join(lines)


def fits() -> str:
    """Images on one GPU, votes stored and not."""
    parameters = BACKBONE_PARAMETERS + sum(layer.weights for layer in IMAGENET)
    fixed = 16 * parameters / GIB  # weights, gradients, two moments
    kept = sum(4 * layer.kept for layer in IMAGENET) / MIB + BACKBONE_MIB
    stored = kept + sum(4 * layer.votes for layer in IMAGENET) * 2 * ITERATIONS / MIB  # votes and their gradients
    here, there = (int((MEMORY / GIB - fixed) * 1024 / each) for each in (kept, stored))
    return (f"{parameters:,} parameters take {fixed:.2f} GiB with gradients and the optimiser's moments. An image\n"
            f"takes {kept:.0f} MiB, most of it the backbone's; with votes kept for the backward pass of {ITERATIONS} "
            f"iterations it\nwould take {stored:.0f} MiB. So {here:,} images fit into {MEMORY / 1e9:.0f} GB, and "
            f"{there:,} would if votes were stored.")


def imagenet(found: list[Rate]) -> str:
    gpus = [rate for rate in found if rate.gpu]
    if not gpus:
        return ("No GPU has been measured yet: `flashcaps bench --sweep --save results/bench` on one, and "
                "`python -m docs.scaling` the table that belongs here.")
    return "\n\n".join(cluster_table(rate) for rate in gpus)


def cluster_table(rate: Rate) -> str:
    votes = sum(layer.votes for layer in IMAGENET) * ITERATIONS
    capsules = votes * rate.nanoseconds / 1e6  # ms an image
    backbone = 1e3 * BACKBONE_FLOP / (USED * rate.flops) if rate.flops else float("nan")
    gradient = 4 * (BACKBONE_PARAMETERS + sum(layer.weights for layer in IMAGENET))
    lines = [f"{rate.hardware}: capsules {capsules:.3f} ms an image (measured rate), backbone {backbone:.3f} ms "
             f"({USED:.0%} of the measured bf16 rate).", "",
             "| GPUs | batch | compute, ms a step | all-reduce, ms | waited for, ms | most of it | images/s "
             "| 90 epochs | read, GB/s |", "| --- |" + " --- |" * 8]
    for count, each in CLUSTERS:
        compute = each * (capsules + backbone)
        wire = NVLINK if count <= 8 else NETWORK
        reduce = 1e3 * 2 * (count - 1) / count * gradient / wire
        waited = max(reduce * min(BUCKET / gradient, 1.0), reduce - BACKWARD * compute)  # the last bucket, at least
        speed = count * each / (compute + waited) * 1e3
        minutes = IMAGES * EPOCHS / speed / 60
        shares = {"backbone": each * backbone, "capsules": each * capsules, "all-reduce": waited}
        most = max(shares, key=lambda name: shares[name])
        lines.append(f"| {count} | {count * each:,} | {compute:.1f} | {reduce:.2f} | {waited:.2f} | {most} "
                     f"| {speed:,.0f} | {minutes:.0f} min | {speed * KILOBYTES / 1e6:.1f} |")
    return "\n".join(lines)


def costs(found: list[Rate]) -> str:
    lines = ["| machine | attention: one number of one vote, one iteration, forward and backward |", "| --- | --- |"]
    lines += [f"| {rate.hardware} | {rate.nanoseconds:.3g} ns |" for rate in found]
    return "\n".join(lines) if found else "Not measured yet: `flashcaps bench --save results/bench`."


# ---- the page


def sections() -> dict[str, Callable[[], str]]:
    found = records()
    known = rates(found)
    return {"growth": lambda: growth(found), "costs": lambda: costs(known), "counts": counts, "fits": fits,
            "imagenet": lambda: imagenet(known)}


def filled(text: str) -> str:
    """The page with every section between its markers made anew."""
    for marker, make in sections().items():
        start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE.name}: expected one {start} and one {end}")
        made = f"{start}\n{make()}\n{end}"
        text = re.sub(f"{start}.*{end}", lambda _, m=made: m, text, flags=re.S)
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
