"""Dynamic routing 2048x8 -> 100x16 at batch 32 on the CPU, forward + backward, side by side in one run.

    python -m benchmarks.cpu [--repeats 5] [--save FILE]

Each variant runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import flashcaps

SHAPE = {"in_capsules": 2048, "in_dim": 8, "out_capsules": 100, "out_dim": 16}
BATCH = 32
VARIANTS = ("public-style", "reference", "matrix")


def build(variant: str) -> Callable[[Tensor], Tensor]:
    if variant == "public-style":
        from .public import PublicDynamic

        return PublicDynamic(**SHAPE)
    layer = flashcaps.DenseCapsules("dynamic", backend=variant, **SHAPE)
    return lambda u: layer(u).pose


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(variant: str, repeats: int, queue: multiprocessing.Queue) -> None:
    """Median seconds of forward + backward, and how far it raised the peak of resident memory."""
    torch.manual_seed(0)
    inputs = [nn.functional.normalize(torch.randn(BATCH, SHAPE["in_capsules"], SHAPE["in_dim"]), dim=-1) for _ in range(2)]
    before = peak_mib()
    layer = build(variant)
    times = []
    for k in range(repeats + 1):
        u = inputs[k % 2].clone().requires_grad_()
        start = time.perf_counter()
        layer(u).square().sum().backward()
        times.append(time.perf_counter() - start)
    queue.put({"variant": variant, "seconds": statistics.median(times[1:]), "peak_mib": peak_mib() - before})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", help="write the rows as JSON here")
    args = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    rows = []
    for variant in VARIANTS:
        queue = context.Queue()
        process = context.Process(target=measure, args=(variant, args.repeats, queue))
        process.start()
        rows.append(queue.get())
        process.join()
    base = rows[0]
    print(f"dynamic {SHAPE['in_capsules']}x8 -> 100x16, 3 iterations, batch {BATCH}, {torch.get_num_threads()} threads")
    print(f"{'variant':<14}{'seconds':>9}{'peak MiB':>10}{'faster':>9}{'of its memory':>15}")
    for row in rows:
        faster, memory = base["seconds"] / row["seconds"], row["peak_mib"] / base["peak_mib"]
        print(f"{row['variant']:<14}{row['seconds']:>9.3f}{row['peak_mib']:>10.0f}{faster:>8.1f}x{memory:>14.1%}")
    if args.save:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        record = {
            "workload": "dynamic 2048x8 -> 100x16, batch 32, forward + backward, fp32",
            "rows": rows,
            "hardware": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "commit": commit,
            "command": "python -m benchmarks.cpu",
        }
        with open(args.save, "w") as file:
            json.dump(record, file, indent=2)


if __name__ == "__main__":
    main()
