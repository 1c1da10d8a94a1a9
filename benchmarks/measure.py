"""Time and memory of one forward + backward: device events, many runs, inputs in turn, eager and captured."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from flashcaps.training.capture import on_side_stream, record

from .workloads import BACKENDS, NO_CAPSULES, Workload

MIB = 2**20
RUNS = (5, 100)  # at least, at most
SPELL = 0.4  # seconds of runs, where that is between the two
CACHE = 100 * MIB  # inputs in turn should exceed twice the second-level cache
SETS = ((4 << 30, 8), (16 << 30, 2))  # up to this peak, at most so many sets of inputs; one above


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """bf16 is autocast, as recipes train; a cache of cast weights must not outlive a captured graph."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device, torch.bfloat16, cache_enabled=False)


class Stepper:
    """A workload on a backend: `step(k)` runs forward + backward on the k-th set of inputs."""

    def __init__(self, workload: Workload, backend: str, precision: str, device: str) -> None:
        if backend not in (*BACKENDS, NO_CAPSULES):
            raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
        if backend == "triton compiled" and not workload.whole:
            raise ValueError("backend: 'triton compiled' is for whole steps; a fused layer has nothing left to compile")
        torch.set_float32_matmul_precision("high")
        self.workload, self.precision, self.device = workload, precision, device
        self.module: Any = workload.build(backend).to(device)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        capturable = {"capturable": True, "fused": True} if device == "cuda" else {}
        self.optimiser = torch.optim.Adam(self.parameters, 1e-4, **capturable) if workload.adam else None
        self.sets: list[tuple[tuple[Tensor, ...], list[Tensor] | None]] = []
        self.more(1)
        if backend.endswith("compiled"):
            self.module = torch.compile(self.module, dynamic=False)

    def more(self, sets: int) -> None:
        """Draw inputs, and gradients of what comes out, until there are `sets` of them."""
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        for k in range(len(self.sets), sets):
            torch.manual_seed(k + 1)
            self.sets.append((self.workload.draw(self.device, dtype), None))

    def outputs(self, k: int = 0) -> tuple[Tensor, ...]:
        with autocast(self.device, self.precision):
            return self.module(*self.sets[k][0])

    def step(self, k: int = 0) -> list[Tensor | None]:
        """The gradients of parameters and of poses."""
        inputs, gradients = self.sets[k]
        outputs = self.outputs(k)
        if gradients is None:  # the first time
            gradients = [torch.ones_like(x) if x.ndim == 0 else torch.randn_like(x) for x in outputs]
            self.sets[k] = (inputs, gradients)
        if self.optimiser is None:
            wanted = [*self.parameters, *(x for x in inputs if x.requires_grad)]
            return list(torch.autograd.grad(outputs, wanted, gradients, allow_unused=True))
        self.optimiser.zero_grad()
        torch.autograd.backward(outputs, gradients)  # into the layout of weights, as optimisers want it
        self.optimiser.step()
        return [p.grad for p in self.parameters]

    def bytes(self) -> int:
        """Of one set of inputs, of the outputs and weights, and of all their gradients."""
        inputs, gradients = self.sets[0]
        poses = sum(x.nbytes for x in inputs if x.requires_grad)
        return 2 * (poses + sum(x.nbytes for x in gradients or ()) + sum(p.nbytes for p in self.parameters))


def peak_of(run: Callable[[], Any], device: str) -> tuple[int | None, int | None]:
    """Bytes by which a run raises the peak of allocated memory, and that peak itself; None on a CPU."""
    if device != "cuda":
        run()
        return None, None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return peak - before, peak


def run_times(runs: list[Callable[[], Any]], device: str, spell: float) -> list[float]:
    """ms of each run, the given ones in turn, for about `spell` seconds."""
    least, most = RUNS
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < least or (len(times) < most and time.perf_counter() - begin < spell):
        count = least if not times else min(most - len(times), 10)
        times += _some(runs, len(times), count, device)
    return times


def _some(runs: list[Callable[[], Any]], first: int, count: int, device: str) -> list[float]:
    if device != "cuda":
        found = []
        for k in range(first, first + count):
            start = time.perf_counter()
            runs[k % len(runs)]()
            found.append(1e3 * (time.perf_counter() - start))
        return found
    events = []
    for k in range(first, first + count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        runs[k % len(runs)]()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def summary(times: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"ms": round(middle, 4), "low_ms": round(low, 4), "high_ms": round(high, 4), "runs": len(times)}


def capture(stepper: Stepper, k: int) -> Callable[[], Any]:
    """A graph of the step on the k-th set of inputs, ready to replay; it owns its results."""
    on_side_stream(lambda: stepper.step(k))
    graph, kept = record(lambda: stepper.step(k))

    def replay(graph: Any = graph, kept: Any = kept) -> None:
        graph.replay()

    return replay


def sets_for(stepper: Stepper, peak: int | None) -> int:
    """How many sets of inputs to take in turn."""
    if peak is None:
        return 2
    most = next((n for limit, n in SETS if peak < limit), 1)
    one = sum(x.nbytes for x in stepper.sets[0][0])
    return max(min(most, -(-CACHE // max(one, 1))), min(most, 2))


def measure(workload: Workload, backend: str, precision: str, device: str, brief: bool = False) -> dict[str, Any]:
    """A row: times, peak memory, and that as a multiple of the bytes of inputs, outputs, weights and gradients.

    brief: fewer runs, and eager ones only where there is no graph.
    """
    stepper = Stepper(workload, backend, precision, device)
    for _ in range(2):
        stepper.step()
    added, _ = peak_of(stepper.step, device)
    row: dict[str, Any] = {"peak_mib": None if added is None else round(added / MIB, 2)}
    if added is not None and not workload.whole:
        resident = sum(x.nbytes for x in (*stepper.parameters, *stepper.sets[0][0], *(stepper.sets[0][1] or ())))
        row["of_bytes"] = round((added + resident) / stepper.bytes(), 3)
    stepper.more(sets_for(stepper, added))
    indices = range(len(stepper.sets))
    for k in indices:
        stepper.step(k)
    spell = SPELL / 4 if brief else SPELL
    if device == "cuda":
        try:
            graphs = [capture(stepper, k) for k in indices]
            for graph in graphs:
                graph()
            row["captured"] = summary(run_times(graphs, device, spell))
            del graphs, graph
        except Exception as error:
            row["captured_error"] = explain(error)
    if not (brief and "captured" in row):
        row["eager"] = summary(run_times([lambda k=k: stepper.step(k) for k in indices], device, spell))
    return row


@torch.no_grad()
def few_outputs(stepper: Stepper, batch: int = 4) -> tuple[tuple[Tensor, ...], Tensor]:
    """A few examples, and what comes out of them."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if stepper.precision == "bf16" else torch.float32
    inputs = stepper.workload.draw(stepper.device, dtype, batch)
    with autocast(stepper.device, stepper.precision):
        return inputs, stepper.module(*inputs)[0]


def error_of(workload: Workload, backend: str, precision: str, device: str) -> float:
    """||x - y|| / ||y|| of what comes out on a few examples, y from the reference in float64."""
    inputs, actual = few_outputs(Stepper(workload, backend, precision, device))
    exact: nn.Module = workload.build("reference").to(device).double()
    expected = exact(*(x.double() if x.is_floating_point() else x for x in inputs))[0]
    return float((actual.double() - expected).norm() / expected.norm().clamp(min=1e-30))


def explain(error: BaseException) -> str:
    """One line: what a row says where it has no numbers."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def clear(device: str) -> None:
    """Give back what a row took, compiled code included."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
