"""Capsule layers on the CPU, forward + backward, side by side in one run: public-style, reference, matrix.

    python -m benchmarks.cpu [--only dynamic] [--repeats 5] [--save FILE]

Each variant lives in a process of its own, so that its peak memory is its own; they take turns, step by step, so that
whatever else the machine does slows them alike.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flashcaps

from . import SEED, provenance
from .public import PUBLIC
from .record import write

# (batch, layer). The first is the one the README speaks of.
WORKLOADS: dict[str, tuple[int, dict[str, Any]]] = {
    "dynamic": (32, {"in_capsules": 2048, "in_dim": 8, "out_capsules": 100, "out_dim": 16}),
    "attention": (64, {"in_capsules": 800, "in_dim": 16, "out_capsules": 32, "out_dim": 16, "pose": "matrix",
                       "iterations": 3}),
    "em": (32, {"in_capsules": 800, "in_dim": 16, "out_capsules": 32, "out_dim": 16, "pose": "matrix"}),
    "heinsen": (8, {"in_capsules": None, "in_dim": (4, 4), "out_capsules": 64, "out_dim": (4, 4), "pose": "matrix"}),
    "discriminative": (128, {"in_capsules": 1152, "in_dim": 8, "out_capsules": 10, "out_dim": 16}),
}
CHILDREN = {"heinsen": 2592}  # where a layer takes any number
VARIANTS = ("public-style", "reference", "matrix")
REPEATS = 5


def build(routing: str, variant: str) -> torch.nn.Module:
    options = WORKLOADS[routing][1]
    torch.manual_seed(SEED)
    if variant == "public-style":
        return PUBLIC[routing](flashcaps.DenseCapsules(routing, **options))
    return flashcaps.DenseCapsules(routing, backend=variant, **options)


def draw(routing: str) -> Tensor:
    batch, options = WORKLOADS[routing]
    dim = options["in_dim"]
    size = dim if isinstance(dim, int) else dim[0] * dim[1]
    return torch.nn.functional.normalize(torch.randn(batch, options["in_capsules"] or CHILDREN[routing], size), dim=-1)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(connection: Connection, routing: str, variant: str) -> None:
    """Seconds of one forward + backward each time it is asked; at the end, how far that raised the peak of memory."""
    torch.manual_seed(SEED + 1)
    inputs = [draw(routing) for _ in range(2)]
    before = peak_mib()
    layer = build(routing, variant)
    while (k := connection.recv()) is not None:
        u = inputs[k % 2].clone().requires_grad_()
        start = time.perf_counter()
        layer.zero_grad()
        layer(u).pose.square().sum().backward()
        connection.send(time.perf_counter() - start)
    connection.send(peak_mib() - before)


def run(routing: str, repeats: int) -> list[dict[str, Any]]:
    """A row per variant: median and least seconds, and peak memory."""
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for variant in VARIANTS:
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, routing, variant), daemon=True))
        processes[-1].start()
        lines.append(ours)
    times: list[list[float]] = [[] for _ in VARIANTS]
    for k in range(repeats + 1):
        for line, found in zip(lines, times, strict=True):
            line.send(k)
            found.append(line.recv())
    rows = []
    for variant, line, found, process in zip(VARIANTS, lines, times, processes, strict=True):
        line.send(None)
        measured = {"seconds": statistics.median(found[1:]), "least": min(found[1:]), "peak_mib": line.recv()}
        rows.append({"workload": routing, "variant": variant, **measured})
        process.join()
    return rows


def shown(routing: str, rows: list[dict[str, Any]]) -> str:
    batch, options = WORKLOADS[routing]
    lines = [
        f"\n{routing}, batch {batch}, {options}",
        f"{'':<33}{'against public-style':>22}{'against reference':>22}",
        f"{'variant':<14}{'seconds':>9}{'peak MiB':>10}" + 2 * f"{'faster':>11}{'memory':>11}",
    ]
    for row in rows:
        ratios = [(x["seconds"] / row["seconds"], row["peak_mib"] / max(x["peak_mib"], 1e-9)) for x in rows[:2]]
        against = "".join(f"{faster:>10.1f}x{memory:>11.1%}" for faster, memory in ratios)
        lines.append(f"{row['variant']:<14}{row['seconds']:>9.3f}{row['peak_mib']:>10.0f}{against}")
    return "\n".join(lines)


def bench(
    names: Sequence[str], save: Path | None, log: Callable[[str], None] = print, repeats: int = REPEATS
) -> list[dict[str, Any]]:
    """Rows of the named algorithms, written to a file if they are all: its numbers are one run's."""
    log(f"forward + backward, fp32, {torch.get_num_threads()} threads, median of {repeats}")
    rows = []
    for routing in names:
        rows += run(routing, repeats)
        log(shown(routing, rows[-len(VARIANTS) :]))
    if save is None:
        return rows
    if set(names) != set(WORKLOADS):
        log(f"\n{save} stays as it is: it holds one run of all algorithms")
        return rows
    workloads = {name: {"batch": batch, "layer": options} for name, (batch, options) in WORKLOADS.items()}
    write(save, {"workloads": workloads, "rows": rows, **provenance()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--save", type=Path, help="write the rows as JSON here, results/bench/cpu.json for the README")
    args = parser.parse_args()
    bench([args.only] if args.only else list(WORKLOADS), args.save, repeats=args.repeats)


if __name__ == "__main__":
    main()
