"""python -m benchmarks: `flashcaps bench` without the command line's own dependencies."""

from __future__ import annotations

import argparse
from pathlib import Path

from .bench import Plan, bench


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", help="names (default: all)")
    parser.add_argument("--backend", action="append", default=[], help="only these; can be repeated")
    parser.add_argument("--precision", action="append", default=[], help="tf32 or bf16; can be repeated")
    parser.add_argument("--sweep", action="store_true", help="how cost grows with I, J, D, iterations, batch, image")
    parser.add_argument("--whole", action="store_true", help="memory of training steps at large batches")
    parser.add_argument("--profile", action="store_true", help="kernels of the three whole steps")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all, most important rows first")
    parser.add_argument("--kernels", default="first", help="first: compile them, only: no more, ready: they are")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--save", type=Path, help="write the results into this folder")
    parser.add_argument("--toy", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    plan = Plan(
        a.workloads, a.backend, a.precision, a.sweep, a.whole, a.profile, a.seconds, a.device, a.save, a.kernels, a.toy
    )  # fmt: skip
    bench(plan, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
