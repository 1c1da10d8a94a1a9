"""The benchmark: what to measure, within which time, and where it is written. `flashcaps bench` calls this."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import cpu, provenance
from .measure import explain
from .record import file_for, merge, read, write
from .runner import Log, Task, large_rows, rows, run, sweep_rows, warm
from .sweeps import points
from .table import write_tables
from .training import profile
from .workloads import BACKENDS, PRECISIONS, profiled, table

KERNELS = ("first", "only", "ready")


@dataclass(frozen=True)
class Plan:
    """workloads: names (none: all). Parts of it: the table unless another is asked for. seconds: for all of them.

    kernels: "first" compiles what is measured before it is, "only" does nothing else (while the device is busy, say),
    "ready" relies on that. folder: what is measured is written there; None writes nothing.
    """

    workloads: Sequence[str] = ()
    backends: Sequence[str] = ()
    precisions: Sequence[str] = ()
    sweep: bool = False
    whole: bool = False
    profile: bool = False
    seconds: float = 600.0
    device: str = "auto"
    folder: Path | None = None
    kernels: str = "first"
    toy: bool = False

    def __post_init__(self) -> None:
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels: expected one of {', '.join(KERNELS)}, got {self.kernels!r}")
        if not self.seconds > 0:
            raise ValueError(f"seconds: expected more than 0, got {self.seconds:g}")

    def check(self) -> None:
        known = table(self.toy)
        if self.sweep:  # an algorithm, an axis of it or one point: "em", "em/D", "em/D/36"
            parts = [point.split("/") for point in points(self.toy)]
            known = dict.fromkeys(["/".join(part[:n]) for n in (1, 2, 3) for part in parts])
        for name, given, right in (
            ("workload", self.workloads, known),
            ("backend", self.backends, BACKENDS),
            ("precision", self.precisions, PRECISIONS),
        ):
            for x in given:
                if x not in right:
                    short = [r for r in right if "/" not in r]
                    raise ValueError(f"{name}: expected one of {', '.join(short)}, got {x!r}")

    def tasks(self) -> list[Task]:
        tasks = []
        if self.whole:
            tasks += large_rows()
        if self.sweep:
            tasks += sweep_rows(self.workloads, self.toy)
        if not (self.whole or self.sweep or self.profile):
            tasks += [Task("rates"), *rows(self.workloads or table(self.toy), self.backends, self.precisions)]
        if self.backends:
            tasks = [task for task in tasks if task.kind == "rates" or task.backend in (*self.backends, "no capsules")]
        if self.precisions:
            tasks = [task for task in tasks if task.kind == "rates" or task.precision in self.precisions]
        return tasks


def bench(plan: Plan, log: Log = print) -> Path | None:
    """Measure; where the plan has a folder, write HARDWARE.json there and the tables and plots made from it."""
    device = plan.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu or cuda, got {device!r}; CUDA_VISIBLE_DEVICES chooses among GPUs")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: 'cuda' asked for, but there is no CUDA device here; use cpu")
    layers = device == "cpu" and all(name in cpu.WORKLOADS for name in plan.workloads)
    if layers and not (plan.sweep or plan.whole or plan.profile or plan.toy):
        path = plan.folder and plan.folder / "cpu.json"
        cpu.bench(list(plan.workloads) or list(cpu.WORKLOADS), path, log)
        if plan.folder:
            write_tables(plan.folder, log)
        return path
    plan.check()
    origin = provenance(device)
    path = plan.folder and file_for(plan.folder, origin["hardware"])
    if path and device == "cpu":
        path = path.with_name("cpu-rows.json")  # cpu.json is the table of layers
    start = time.monotonic()
    if plan.kernels == "only":
        needed = [task for task in plan.tasks() if task.needs_compiler]
        warm(needed, device, plan.toy, plan.seconds)
        log(f"kernels of {len(needed)} rows: {time.monotonic() - start:.0f} s")
        return path
    if plan.profile:
        write_profiles(plan, device, log)
    left = max(plan.seconds - (time.monotonic() - start), 1.0)
    tasks = plan.tasks()
    before, found = read(path) if path else {}, []
    for row in run(tasks, device, left, timed(log, start), plan.toy, plan.kernels == "ready"):
        found.append(row)
        if path:
            write(path, merge(before, found, origin, plan.toy))  # what there is survives whatever ends the process
    if plan.folder:
        write_tables(plan.folder, log)
    log(f"{time.monotonic() - start:.0f} s in all")
    return path


def timed(log: Log, start: float) -> Log:
    """`log`, with the seconds since the start before each line."""
    return lambda line: log(f"{time.monotonic() - start:6.1f}  {line}")


def write_profiles(plan: Plan, device: str, log: Log) -> None:
    """The kernels of the three whole steps, in profile.txt; without a folder, on the screen."""
    texts = []
    backends = plan.backends or (("triton",) if device == "cuda" else ("matrix",))
    for workload in profiled(plan.toy):
        for backend in backends:
            for precision in plan.precisions or ("bf16",):
                log(f"profile of {workload.name}, {backend}, {precision}")
                texts.append(_profile(workload, backend, precision, device))
    o = provenance(device)
    head = f"{o['hardware']}, torch {o['versions']['torch']}, commit {o['commit']}, made by {o['command']}\n"
    if plan.folder is None:
        return log("\n".join([head, *texts]))
    plan.folder.mkdir(parents=True, exist_ok=True)
    (plan.folder / "profile.txt").write_text("\n".join([head, *texts]))


def _profile(workload: Any, backend: str, precision: str, device: str) -> str:
    try:
        return profile(workload, backend, precision, device)
    except Exception as error:
        return f"{workload.title}, {backend}, {precision}: failed: {explain(error)}\n"
