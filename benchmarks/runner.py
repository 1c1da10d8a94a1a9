"""Rows in order of importance within a budget of time, each in a process that may fail without taking the rest along.

A row is a task: (kind, workload, backend, precision). Kernels that must be compiled first are, many at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from flashcaps.kernels.warm_up import compile_kernels

from . import sweeps
from .floors import measure_rates
from .measure import clear, error_of, explain, measure
from .training import training_peak
from .workloads import BACKENDS, NO_CAPSULES, PRECISIONS, Workload, large, table

ROW_S = {"compiled": 150.0, "": 60.0}  # seconds a row may take before its process is ended
WARM_S = {"compiled": 120.0, "": 90.0}
COMPILERS = min(os.cpu_count() or 1, 14)

Log = Callable[[str], None]


class Task(NamedTuple):
    kind: str  # "row", "sweep", "large" or "rates"
    workload: str = ""
    backend: str = ""
    precision: str = ""

    @property
    def compiled(self) -> str:
        return "compiled" if self.backend.endswith("compiled") else ""

    @property
    def needs_compiler(self) -> bool:
        return bool(self.compiled) or self.backend == "triton"

    def find(self, toy: bool) -> Workload:
        found = {"row": table, "sweep": sweeps.points, "large": large}[self.kind](toy)
        return found[self.workload]

    def __str__(self) -> str:
        return ", ".join(x for x in (self.workload, self.backend, self.precision) if x) or self.kind


def rows(names: Iterable[str], backends: Iterable[str] = (), precisions: Iterable[str] = ()) -> list[Task]:
    """Most important first: the fused kernels, what they are compared with, then everything else."""
    known, chosen, wanted = table(), list(names), list(precisions) or PRECISIONS
    backends = list(backends) or BACKENDS
    order = [(b, p) for b in ("triton", NO_CAPSULES) for p in PRECISIONS] + [("public", "tf32"), ("matrix", "tf32")]
    order += [(b, p) for p in PRECISIONS for b in BACKENDS if (b, p) not in order]
    tasks = []
    for backend, precision in order:
        if precision not in wanted or backend not in (*backends, NO_CAPSULES):
            continue
        for name in chosen:
            if not known[name].whole and backend in (NO_CAPSULES, "triton compiled"):
                continue
            tasks.append(Task("row", name, backend, precision))
    return tasks


def sweep_rows(names: Iterable[str] = (), toy: bool = False) -> list[Task]:
    """Every point of the sweeps (or those below "em", "em/D", ...), the fused form of all before the matrix form."""
    chosen = tuple(f"{name}/" for name in names)
    found = [name for name in sweeps.points(toy) if not chosen or f"{name}/".startswith(chosen)]
    tasks = [Task("sweep", name, backend, "tf32") for name in found for backend in ("triton", "matrix")]
    return sorted(tasks, key=lambda task: task.backend != "triton")


def large_rows() -> list[Task]:
    """Large batches: fused first, then the matrix form."""
    return [Task("large", name, b, p) for b in ("triton", "matrix") for p in PRECISIONS for name in large()]


def perform(task: Task, device: str, toy: bool) -> dict[str, Any]:
    """What a task measures; what fails is written down."""
    row: dict[str, Any] = {}
    try:
        if task.kind == "rates":
            return measure_rates(device)
        workload = task.find(toy)
        row = {"batch": workload.batch}
        if task.kind == "large":
            return row | training_peak(workload, task.backend, task.precision, device)
        if task.kind == "sweep":
            return row | measure(workload, task.backend, task.precision, device, brief=True)
        row |= measure(workload, task.backend, task.precision, device)
        clear(device)
        if task.backend != NO_CAPSULES:
            row["error_of_output"] = error_of(workload, task.backend.removesuffix(" compiled"), task.precision, device)
        return row
    except Exception as error:
        return row | {"failed": explain(error)}
    finally:
        clear(device)


def serve(connection: Connection, device: str, toy: bool) -> None:
    """Perform tasks until there are no more; leave when the device is broken, for the next process to go on."""
    torch.backends.cudnn.benchmark = True  # as training does
    while (task := connection.recv()) is not None:
        row = perform(task, device, toy)
        connection.send(row)
        try:
            if device == "cuda":
                torch.cuda.synchronize()
        except RuntimeError:
            return


class Worker:
    """A process that performs tasks one at a time, started anew whenever one takes it down."""

    def __init__(self, device: str, toy: bool) -> None:
        self.device, self.toy = device, toy
        self.context = multiprocessing.get_context("spawn")
        self.process: Any = None

    def ask(self, task: Task, seconds: float) -> dict[str, Any]:
        try:
            if self.process is None or not self.process.is_alive():
                self.start()
            self.connection.send(task)
            if self.connection.poll(seconds):
                return self.connection.recv()
            self.end()
            return {"failed": f"took longer than {seconds:.0f} s"}
        except (EOFError, OSError):
            self.end()
            return {"failed": "its process died"}

    def start(self) -> None:
        self.connection, theirs = self.context.Pipe()
        self.process = self.context.Process(target=serve, args=(theirs, self.device, self.toy), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.process = None

    def close(self) -> None:
        if self.process is not None and self.process.is_alive():
            self.connection.send(None)
            self.process.join(10)
        self.end()


def prepare(tasks: list[Task], device: str, toy: bool) -> None:
    """What each task's step compiles, and the few examples its error is taken of, into the caches on disk."""
    from .measure import Stepper, few_outputs

    start = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:6.1f}  {what}", flush=True)

    def steps() -> None:
        for task in tasks:
            try:
                stepper = Stepper(task.find(toy), task.backend, task.precision, device)
                stepper.step()
                if task.kind == "row" and not task.compiled:
                    few_outputs(stepper)  # not the float64 that they are compared with, which takes longer than all
            except Exception as error:  # met again, and written down, where it is measured
                say(f"not prepared: {task}: {explain(error)}")
            clear(device)
        say(f"{len(tasks)} steps, of which is known what they compile")

    if tasks[0].compiled:
        steps()
    else:
        say(f"{compile_kernels(steps)} kernels compiled")


def warm(tasks: list[Task], device: str, toy: bool, seconds: float) -> None:
    """Compile kernels and graphs of torch side by side; what is not ready in time compiles when it is measured."""
    plain, graphs = ([task for task in tasks if bool(task.compiled) == x] for x in (False, True))
    shares = [share for share in (plain, *(graphs[k::COMPILERS] for k in range(COMPILERS))) if share]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=prepare, args=(share, device, toy), daemon=True) for share in shares]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join()


def run(
    tasks: list[Task], device: str, seconds: float, log: Log, toy: bool = False, prepared: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows of the tasks there is time for, as they come. Those that need torch.compile are last.

    prepared: what they need was compiled before.
    """
    deadline = time.monotonic() + seconds
    late: list[Task] = []
    worker = Worker(device, toy)
    try:
        for compiled in ("", "compiled"):
            chosen = [task for task in tasks if task.compiled == compiled]
            first = [task for task in chosen if task.needs_compiler]
            left = deadline - time.monotonic()
            if device == "cuda" and first and left > 0 and not prepared:
                log(f"compiling for {len(first)} rows")
                warm(first, device, toy, min(WARM_S[compiled], left))
            for task in chosen:
                left = deadline - time.monotonic()
                if left <= 0:
                    late.append(task)
                    continue
                row = worker.ask(task, min(ROW_S[compiled], left + 20))
                log(f"{task}: {describe(row)}")
                yield {**task._asdict(), **row}
    finally:
        worker.close()
    if late:
        log(f"no time left for {len(late)} rows, from {late[0]} on")


def describe(row: dict[str, Any]) -> str:
    """A row in a few words."""
    if "failed" in row:
        return row["failed"]
    if "peak_mib" not in row:
        return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    memory = "" if row["peak_mib"] is None else f", {row['peak_mib']:,.0f} MiB"
    times = ", ".join(f"{row[form]['ms']:.3f} ms {form}" for form in ("captured", "eager") if form in row)
    return f"{times}{memory}"
