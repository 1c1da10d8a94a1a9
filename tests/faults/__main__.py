"""python -m tests.faults: try every fault, print tried / survived / lost, keep the numbers in results/faults.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from flashcaps.training.checkpoint import write_atomic
from flashcaps.training.environment import versions
from flashcaps.training.results import commit, duration, hardware
from tests.faults.child import Row

FAULTS = ("kill", "disk", "nonfinite", "lost_rank", "long_run", "together")
RESULTS = Path(__file__).parents[2] / "results" / "faults.json"


def try_one(name: str, full: bool) -> tuple[Row, float]:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"faults-{name}-") as folder:
        row: Row = importlib.import_module(f"tests.faults.{name}").try_all(Path(folder) / "trials", full)
    return row, time.monotonic() - begun


def line(row: Row, seconds: float) -> str:
    counts = f"{row.tried:>8,}{row.survived:>10,}{len(row.lost):>6,}"
    return f"{row.fault:<50}{counts}  {duration(seconds)}" + (f"  {row.note}" if row.note else "")


def record(rows: list[tuple[Row, float]], words: list[str]) -> dict[str, Any]:
    return {
        "rows": [{"fault": r.fault, "tried": r.tried, "survived": r.survived, "lost": len(r.lost),
                  "seconds": round(s, 1), "note": r.note, "losses": r.lost[:20]} for r, s in rows],
        "wall_s": round(sum(s for _, s in rows), 1),
        "seed": 0,
        "command": shlex.join(["python", "-m", "tests.faults", *words]),
        "commit": commit(),
        "hardware": hardware(torch.device("cpu")),
        "cores": os.cpu_count(),
        "versions": versions(),
    }  # fmt: skip


def main(words: list[str]) -> int:
    """Exit code 0 when nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"only these: {', '.join(FAULTS)}")
    parser.add_argument("--quick", action="store_true", help="the small sizes that run with the tests")
    parser.add_argument("--save", type=Path, help="where the numbers go (results/faults.json when all are tried)")
    options = parser.parse_args(words)
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come: sums over threads depend on their number
    torch.set_num_threads(1)
    print(f"{'fault':<50}{'tried':>8}{'survived':>10}{'lost':>6}")
    rows = []
    for name in options.faults or FAULTS:
        rows.append(try_one(name, not options.quick))
        print(line(*rows[-1]), flush=True)
        for lost in rows[-1][0].lost[:5]:
            print(f"      lost: {lost}", flush=True)
    default = None if options.faults or options.quick else RESULTS
    if save := options.save or default:
        write_atomic(save, json.dumps(record(rows, words), indent=2) + "\n")
    return 1 if any(row.lost for row, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
