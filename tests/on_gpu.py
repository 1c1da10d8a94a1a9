"""The tests that need a CUDA device, over several processes, and the report of it that is kept.

    python -m tests.on_gpu --save results/gpu_tests.json       # make test-gpu

Most of the time goes into compiling kernels, which one process does on one core.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.training.checkpoint import write_atomic
from flashcaps.training.results import commit, hardware

ROOT = Path(__file__).parents[1]


def why(report: pytest.CollectReport | pytest.TestReport) -> str:
    return report.longreprtext[-1500:]


class Collected:
    """The ids of the tests, without running them, and the files that cannot be imported here."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.failed: list[dict[str, Any]] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append({"test": report.nodeid, "outcome": "failed", "seconds": 0.0, "why": why(report)})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.ids = [item.nodeid for item in session.items]


class Shared:
    """Each test goes to the process that claims it first. One JSON line for each as soon as it ends, so that a process
    stopped half-way loses nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / f"{os.getpid()}.told"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for k, item in enumerate(session.items):
            try:
                (self.folder / f"{k}.claim").touch(exist_ok=False)
            except FileExistsError:
                continue
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
        if report.outcome != "passed":
            line["why"] = why(report)
        with self.path.open("a") as f:
            f.write(json.dumps(line) + "\n")


def run_all(processes: int, limit: float, words: list[str], marked: str) -> dict[str, Any]:
    """Every test once, whole models first, which take longest, then kernels by chance, so that like ones are not
    compiled at the same time; what had no time is named. Tests that found no memory beside others run again, alone."""
    collected = Collected()
    files = sorted(str(f.relative_to(ROOT)) for f in ROOT.glob("tests/**/test_*.py") if "mark.gpu" in f.read_text())
    pytest.main(["-q", "-m", marked, "--collect-only", "-p", "no:cacheprovider", *files], plugins=[collected])
    ids = sorted(i for i in collected.ids if not words or any(word in i for word in words))
    random.Random(0).shuffle(ids)
    ids.sort(key=lambda i: "tests/kernels/" in i)
    start = time.monotonic()
    told = run_shared(ids, processes, limit)
    again = sorted({t["test"] for t in told if t["outcome"] == "failed" and "OutOfMemoryError" in t["why"]})
    if again:
        told = [t for t in told if t["test"] not in again]
        told += run_shared(again, 1, limit - (time.monotonic() - start))
    told += collected.failed
    outcomes = {t["test"]: t for t in sorted(told, key=lambda t: t["outcome"] != "failed", reverse=True)}
    return {
        "outcomes": dict(Counter(t["outcome"] for t in outcomes.values())),
        "not_run": sorted(set(ids) - set(outcomes)),
        "failed": [t for t in outcomes.values() if t["outcome"] == "failed"],
        "again": again,
        "wall_s": round(time.monotonic() - start, 1),
        "seconds": {i: outcomes[i]["seconds"] for i in sorted(outcomes)},
    }


def run_shared(ids: list[str], processes: int, limit: float) -> list[dict[str, Any]]:
    """The lines that processes wrote in this time, each test by one of them."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ids.json").write_text(json.dumps(ids))
        command = [sys.executable, "-m", "tests.on_gpu", "--share", folder]
        options: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, **options) for _ in range(processes)]
        for process in running:
            try:
                process.wait(max(0.1, limit - (time.monotonic() - start)))
            except subprocess.TimeoutExpired:
                process.kill()
        return [json.loads(x) for f in Path(folder).glob("*.told") for x in f.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.on_gpu", description=__doc__)
    parser.add_argument("words", nargs="*", help="only tests with one of these in their name")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=1800.0, help="time for all")
    parser.add_argument("--quick", action="store_true", help="without the slow ones")
    parser.add_argument("--save", type=Path, default=ROOT / "results" / "gpu_tests.json")
    parser.add_argument("--share", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.share:
        ids = json.loads((a.share / "ids.json").read_text())
        return int(pytest.main(["-q", "-m", "gpu", "-p", "no:cacheprovider", *ids], plugins=[Shared(a.share)]))
    if not torch.cuda.is_available():
        parser.error("no CUDA device here")
    report = {
        "commit": commit(),
        "hardware": hardware(torch.device("cuda")),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "command": "python -m tests.on_gpu",
        **run_all(a.processes, a.seconds, a.words, "gpu and not slow" if a.quick else "gpu"),
    }
    write_atomic(a.save, json.dumps(report, indent=1) + "\n")
    print(f"{report['outcomes']}, {len(report['not_run'])} not run, {report['wall_s']:.0f} s")
    for t in report["failed"]:
        print(f"FAILED {t['test']}\n{t['why'][-400:]}")
    return int(bool(report["failed"] or report["not_run"]))


if __name__ == "__main__":
    sys.exit(main())
