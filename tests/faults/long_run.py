"""Ten thousand steps: memory, open files and threads stay as they were, and others can read the log all along."""

import functools
import json
import os
import threading
from pathlib import Path
from typing import Any

from flashcaps.training import loop as training
from tests.faults.child import Child, prepare, start

PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH = 0.01
LONG_S = 1200


def sample(out: Path) -> None:
    """Write memory, open files and threads whenever the loop says how far it is."""
    real = training.TrainStep.read

    def told(self: Any) -> Any:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        now = {"rss": resident, "files": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
               "tasks": len(os.listdir("/proc/self/task"))}  # fmt: skip
        with out.open("a") as lines:
            lines.write(json.dumps(now) + "\n")
        return real(self)

    training.TrainStep.read = told  # type: ignore[method-assign]


def try_all(folder: Path, full: bool) -> int:
    steps = 10_000 if full else 200
    prepare(folder)
    out = folder / "samples.jsonl"
    child = start(folder, "run", f"train.steps={steps}", "log_every=20", "evaluate_every=10", "save_seconds=1",
                  patch=functools.partial(sample, out))  # fmt: skip
    reads = _read_along(child, folder / "run" / "metrics.jsonl")
    child.ends_with(0)
    assert reads, "nobody read the log"
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    settled = samples[len(samples) // 4 :]  # the first evaluations and saves allocate what the later ones use again
    for what in ("files", "threads", "tasks"):
        assert len({s[what] for s in settled}) == 1, f"{what}: {[s[what] for s in settled]}"
    if full:
        first, last = (max(s["rss"] for s in part) for part in (settled[:20], settled[-20:]))
        print(f"memory {(last / first - 1) * 100:+.2f} %, {reads:,} reads of the log")
        assert last <= first * (1 + GROWTH), f"memory grew from {first:,} to {last:,} bytes"
    return 1


def _read_along(child: Child, log: Path) -> int:
    """Reads the log again and again: all that ends in a newline is whole lines, and none that was there goes."""
    reads, before = 0, b""

    def read() -> bool:
        nonlocal reads, before
        content = log.read_bytes() if log.is_file() else b""
        content = content[: content.rfind(b"\n") + 1]
        assert content.startswith(before), f"the log changed before byte {len(before):,}"
        for line in content[len(before) :].splitlines():
            json.loads(line)
        reads, before = reads + bool(content), content
        return False

    child.wait_for(read, LONG_S)
    return reads
