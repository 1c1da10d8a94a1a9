"""Capsule layers on the CPU, forward + backward, side by side in one run: public-style, reference, matrix.

    python -m benchmarks.cpu [--only dynamic] [--repeats 5] [--save FILE]

Each variant runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from typing import Any

import torch
from torch import Tensor

import flashcaps

from . import provenance
from .public import PUBLIC

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


def build(routing: str, variant: str) -> tuple[torch.nn.Module, Any]:
    """The layer, and what to call to get its poses."""
    options = WORKLOADS[routing][1]
    torch.manual_seed(0)
    if variant == "public-style":
        public = PUBLIC[routing](flashcaps.DenseCapsules(routing, **options))
        return public, public
    layer = flashcaps.DenseCapsules(routing, backend=variant, **options)
    return layer, lambda u: layer(u).pose


def draw(routing: str) -> Tensor:
    batch, options = WORKLOADS[routing]
    dim = options["in_dim"]
    size = dim if isinstance(dim, int) else dim[0] * dim[1]
    return torch.nn.functional.normalize(torch.randn(batch, options["in_capsules"] or CHILDREN[routing], size), dim=-1)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(routing: str, variant: str, repeats: int, queue: Any) -> None:
    """Median seconds of forward + backward, and how far it raised the peak of resident memory."""
    inputs = [draw(routing) for _ in range(2)]
    before = peak_mib()
    layer, poses = build(routing, variant)
    times = []
    for k in range(repeats + 1):
        u = inputs[k % 2].clone().requires_grad_()
        start = time.perf_counter()
        layer.zero_grad()
        poses(u).square().sum().backward()
        times.append(time.perf_counter() - start)
    queue.put({"seconds": statistics.median(times[1:]), "peak_mib": peak_mib() - before})


def run(routing: str, repeats: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    rows = []
    for variant in VARIANTS:
        queue = context.Queue()
        process = context.Process(target=measure, args=(routing, variant, repeats, queue))
        process.start()
        rows.append({"workload": routing, "variant": variant, **queue.get()})
        process.join()
    batch, options = WORKLOADS[routing]
    print(f"\n{routing}, batch {batch}, {options}")
    print(f"{'':<33}{'against public-style':>22}{'against reference':>22}")
    print(f"{'variant':<14}{'seconds':>9}{'peak MiB':>10}" + 2 * f"{'faster':>11}{'memory':>11}")
    for row in rows:
        ratios = [(x["seconds"] / row["seconds"], row["peak_mib"] / x["peak_mib"]) for x in rows[:2]]
        shown = "".join(f"{faster:>10.1f}x{memory:>11.1%}" for faster, memory in ratios)
        print(f"{row['variant']:<14}{row['seconds']:>9.3f}{row['peak_mib']:>10.0f}{shown}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", help="write the rows as JSON here, results/bench/cpu.json for the README")
    args = parser.parse_args()
    print(f"forward + backward, fp32, {torch.get_num_threads()} threads, median of {args.repeats}")
    rows = [row for routing in ([args.only] if args.only else WORKLOADS) for row in run(routing, args.repeats)]
    if args.save:
        workloads = {name: {"batch": batch, "layer": options} for name, (batch, options) in WORKLOADS.items()}
        record = {"workloads": workloads, "rows": rows, **provenance()}
        with open(args.save, "w") as file:
            json.dump(record, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
