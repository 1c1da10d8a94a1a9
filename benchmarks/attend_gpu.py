"""`attend` on a CUDA device: right, reproducible, and how fast. One command:

    python -m benchmarks.attend_gpu [--save FILE] [--precisions fp32,bf16] [--variants] [--matrix]

Each workload is checked against explicit votes in float64 (output and every gradient, as ||x - y|| / ||y||) and run
twice for equal bits; then forward + backward is captured in a graph and its replays are timed (median, device
events, two input sets in turn). The floor is the larger of bytes over bandwidth (each input read and each output
written once per pass that needs it) and products over the TF32 or bf16 rate. --variants times the layers with other
blocks and numbers of programs, each in a process of its own, --matrix the matrix form, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashcaps.kernels.attend import launch, plan
from flashcaps.kernels.attend.matrix import Attend
from flashcaps.kernels.attend.triton import TritonAttend, dynamic_poses
from flashcaps.kernels.votes import Votes
from flashcaps.routing.dynamic import dynamic_routing
from flashcaps.routing.math import squash

from . import provenance

BANDWIDTH = 4.3e12  # bytes / s, device to device copy of an H200
RATE = {"fp32": 380e12, "bf16": 790e12, "ieee": 60e12, "tf32x3": 127e12}  # operations / s; ieee: without matrix units
EXACT = ("ieee", "tf32x3")  # two ways to multiply fp32 without TF32's rounding
DTYPE = {"fp32": torch.float32, "ieee": torch.float32, "tf32x3": torch.float32, "bf16": torch.bfloat16}

SEED = 0
ERRORS = ("s", "gu", "gW", "gq")


class Workload(NamedTuple):
    name: str
    sizes: plan.Sizes
    iterations: int  # of dynamic routing; 0: one attention step with a query
    precisions: tuple[str, ...]


WORKLOADS = [
    Workload("1152x8 -> 10x16, 3 it., B 128", plan.Sizes(128, 1152, 10, 1, 8, 16), 3, ("fp32", "bf16", *EXACT)),
    Workload("3200x8 -> 10x16, 3 it., B 128", plan.Sizes(128, 3200, 10, 1, 8, 16), 3, ("fp32",)),
    Workload("2048x8 -> 100x16, 3 it., B 128", plan.Sizes(128, 2048, 100, 1, 8, 16), 3, ("fp32", "bf16")),
    Workload("attention 288x4x4 -> 32x4x4, B 6272", plan.Sizes(6272, 288, 32, 4, 4, 4), 0, ("fp32", "bf16")),
]
DYNAMIC = 3  # of them, first, which are timed in variants
# Names of `plan` and what they are in a variant; each is a row beside what the plan has.
VARIANTS: dict[str, dict[str, Any]] = {
    "as planned": {},
    "forward 64 x 64, three at a time": {
        name: {**getattr(plan, name), "forward": plan.Block(64, 64, 4, 3, 168)} for name in ("BLOCKS", "LONG")
    },
    "backward as for few parents": {"MANY_PARENTS": 1 << 30},
    "backward as for many": {"MANY_PARENTS": 0},
    "132 finish": {"FINISHERS": 132},
    "uniform, 4 warps": {"FEW_ROWS": plan.FEW_ROWS._replace(warps=4)},
}  # fmt: skip


def set_precision(precision: str) -> None:
    torch.set_float32_matmul_precision("highest" if precision in EXACT else "high")
    if precision in EXACT:
        launch.EXACT = precision


def draw(n: plan.Sizes, dtype: torch.dtype) -> list[Tensor]:
    """u, weight and a query."""
    def normal(*size: int, std: float) -> Tensor:
        return (std * torch.randn(size, device="cuda")).to(dtype).requires_grad_()

    return [normal(n.b, n.g, 1, n.c, n.d, std=0.3), normal(n.j, n.d, n.g, n.h, std=0.3),
            normal(n.b, n.j, n.c * n.h, std=(n.c * n.h) ** -0.5)]  # fmt: skip


def layer(iterations: int) -> Callable[..., Tensor]:
    """The fused layer; 0 iterations: one step with a query."""
    if iterations == 0:
        return lambda u, weight, query: TritonAttend(Votes(u, weight))(query)
    return lambda u, weight, query: dynamic_poses(Votes(u, weight), iterations)


def matrix(iterations: int) -> Callable[..., Tensor]:
    """The same in the matrix form."""

    def run(u: Tensor, weight: Tensor, query: Tensor) -> Tensor:
        step = Attend(Votes(u, weight))
        if iterations == 0:
            return step(query)
        total = None
        for _ in range(iterations):
            v = squash(step(total))
            total = v if total is None else total + v
        return v

    return run


def explicit(iterations: int) -> Callable[..., Tensor]:
    """The same on explicit votes."""

    def run(u: Tensor, weight: Tensor, query: Tensor) -> Tensor:
        v = Votes(u, weight).explicit()
        if iterations:
            return dynamic_routing(v, iterations=iterations).pose
        return torch.einsum("bij,bijd->bjd", torch.einsum("bijd,bjd->bij", v, query).softmax(-1), v)

    return run


def gradients(run: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The output, and the gradient of each input that it depends on."""
    out = run(*inputs)
    found = torch.autograd.grad(out, inputs, grad.to(out.dtype), allow_unused=True)
    return [out.detach(), *(x for x in found if x is not None)]


def check(n: plan.Sizes, iterations: int, dtype: torch.dtype) -> dict[str, Any]:
    """Relative errors of the layer, and whether two runs give the same bits."""
    n = n._replace(b=min(n.b, 1001 if iterations == 0 else 17))
    inputs, run = draw(n, dtype), layer(iterations)
    grad = torch.randn(n.b, n.j, n.c * n.h, device="cuda").to(dtype)
    actual, again = gradients(run, inputs, grad), gradients(run, inputs, grad)
    double = [x.detach().double().requires_grad_() for x in inputs]
    expected = gradients(explicit(iterations), double, grad.double())
    far = [float((x.double() - y).norm() / y.norm()) for x, y in zip(actual, expected, strict=True)]
    same = all(torch.equal(x, y) for x, y in zip(actual, again, strict=True))
    return {**dict(zip(ERRORS, far, strict=False)), "same_bits": same}


def time_graph(run: Callable[..., Tensor], n: plan.Sizes, iterations: int, dtype: torch.dtype) -> tuple[float, float]:
    """Median ms of forward + backward replayed from graphs, and the peak MB of one, inputs and gradients included."""
    graphs = []
    for _ in range(2):
        inputs = draw(n, dtype)
        wanted = inputs if iterations == 0 else inputs[:2]
        grad = torch.randn(n.b, n.j, n.c * n.h, device="cuda").to(dtype)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated() - sum(x.nbytes for x in (*inputs, grad))
        torch.cuda.reset_peak_memory_stats()
        with torch.cuda.stream(stream):
            for _ in range(2):
                torch.autograd.grad(run(*inputs), wanted, grad)
        torch.cuda.current_stream().wait_stream(stream)
        peak = (torch.cuda.max_memory_allocated() - before) / 1e6
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = torch.autograd.grad(run(*inputs), wanted, grad)
        graphs.append((graph, inputs, grad, kept))
    times = []
    for k in range(60):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graphs[k % 2][0].replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[10:]), peak


def by_kernel(run: Callable[..., Tensor], n: plan.Sizes, iterations: int, dtype: torch.dtype) -> dict[str, list[float]]:
    """Kernel -> [calls, us in all] of one forward + backward, the mean of five."""
    inputs = draw(n, dtype)
    wanted = inputs if iterations == 0 else inputs[:2]
    grad = torch.randn(n.b, n.j, n.c * n.h, device="cuda").to(dtype)
    torch.autograd.grad(run(*inputs), wanted, grad)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            torch.autograd.grad(run(*inputs), wanted, grad)
        torch.cuda.synchronize()
    rows = {e.key[-70:]: [e.count / 5, round(e.self_device_time_total / 5, 1)] for e in profile.key_averages()}
    return dict(sorted(((k, v) for k, v in rows.items() if v[1] > 0), key=lambda row: -row[1][1])[:12])


def floor_ms(work: Workload, precision: str) -> float:
    """Passes forward 1, backward 2 (gu and gq; gW) per step; dynamic's first step has no agreement."""
    n, steps = work.sizes, max(work.iterations, 1)
    coupled = steps - 1 if work.iterations else 1
    products = 2.0 * n.b * n.g * n.j * n.c * n.d * n.h  # of one product with the votes' factors
    operations = products * (3 * (steps - coupled) + 6 * coupled)  # s, gu, gW; y, s, z, gq, 2 gW
    u, w = n.b * n.g * n.c * n.d, n.j * n.d * n.g * n.h
    moved = DTYPE[precision].itemsize * (3 * u + 3 * w)  # each once forward, once backward, its gradient once
    return 1e3 * max(operations / RATE[precision], moved / BANDWIDTH)


def measure(work: Workload, precision: str, with_matrix: bool = False) -> dict[str, Any]:
    set_precision(precision)
    n, dtype = work.sizes, DTYPE[precision]
    fused = layer(work.iterations)
    row: dict[str, Any] = {"workload": work.name, "precision": precision, "floor_ms": floor_ms(work, precision)}
    row.update(check(n, work.iterations, dtype))
    torch.cuda.empty_cache()
    row["triton_ms"], row["triton_mb"] = time_graph(fused, n, work.iterations, dtype)
    row["again_ms"], _ = time_graph(fused, n, work.iterations, dtype)
    row["kernels"] = by_kernel(fused, n, work.iterations, dtype)
    if with_matrix and precision in ("fp32", "bf16") and n.b <= 128:
        row["matrix_ms"], row["matrix_mb"] = time_graph(matrix(work.iterations), n, work.iterations, dtype)
    torch.cuda.empty_cache()
    return row


def choose(variant: str) -> None:
    for attribute, value in VARIANTS[variant].items():
        setattr(plan, attribute, value)


def sweep(name: str, file: str) -> None:
    """Dynamic layers under one variant, in fp32: rows in a file."""
    choose(name)
    rows = []
    for work in WORKLOADS[:DYNAMIC]:
        try:
            rows.append({"variant": name, **measure(work, "fp32")})
        except Exception as error:  # a block too large for this device is a row of its own
            rows.append({"variant": name, "workload": work.name, "error": repr(error)[:200]})
    with open(file, "w") as out:
        json.dump(rows, out)


def compile_ahead(workload: str, precision: str, variant: str) -> None:
    """In a process of its own, so that compilers run side by side."""
    choose(variant)
    set_precision(precision)
    work = WORKLOADS[int(workload)]
    inputs = draw(work.sizes, DTYPE[precision])
    gradients(layer(work.iterations), inputs, torch.randn_like(inputs[2]))


def in_process(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.attend_gpu", *arguments])


def show(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        print(row["workload"], row["precision"], row["kernels"])
    for row in report.get("variants", []):
        print(f"{row['variant']:<34}{row['workload']:<37}", row.get("error") or f"{row['triton_ms']:.4f}")
    head = f"{'workload':<37}{'':>7}{'floor':>8}{'triton':>8}{'again':>8}{'matrix':>8}{'MB':>7}{'':>7}"
    print(f"{head}  errors, same bits")
    for r in report["rows"]:
        times = "".join(f"{r.get(k, 0):>8.3f}" for k in ("floor_ms", "triton_ms", "again_ms", "matrix_ms"))
        memory = "".join(f"{r.get(k, 0):>7.0f}" for k in ("triton_mb", "matrix_mb"))
        far = " ".join(f"{r[k]:.0e}" for k in ERRORS if k in r)
        print(f"{r['workload']:<37}{r['precision']:>7}{times}{memory}  {far} {r['same_bits']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", help="write all numbers as JSON here")
    parser.add_argument("--precisions", default=",".join(RATE), help="those to run, of " + ", ".join(RATE))
    parser.add_argument("--variants", action="store_true", help="time the layers with other blocks, too")
    parser.add_argument("--matrix", action="store_true", help="time the matrix form, too")
    parser.add_argument("--variant", nargs=2, help=argparse.SUPPRESS)  # its name, and a file
    parser.add_argument("--compile", nargs=3, help=argparse.SUPPRESS)  # number of a workload, precision, variant
    args = parser.parse_args()
    torch.manual_seed(SEED)
    if args.compile:
        return compile_ahead(*args.compile)
    if args.variant:
        return sweep(*args.variant)
    todo = [(k, p) for k, work in enumerate(WORKLOADS) for p in work.precisions if p in args.precisions.split(",")]
    compiled = [(str(k), precision, "as planned") for k, precision in todo]
    compiled += [(str(k), "fp32", name) for k in range(DYNAMIC) for name in VARIANTS if args.variants]
    for process in [in_process("--compile", *task) for task in dict.fromkeys(compiled)]:
        process.wait()
    rows = [measure(WORKLOADS[k], precision, args.matrix) for k, precision in todo]
    report: dict[str, Any] = {**provenance("cuda"), "seed": SEED, "rows": rows}
    if args.variants:
        report["variants"] = []
        for name in VARIANTS:
            with tempfile.NamedTemporaryFile() as file:
                in_process("--variant", name, file.name).wait()
                report["variants"] += json.loads(Path(file.name).read_text() or "[]")
    if args.save:
        with open(args.save, "w") as file:
            json.dump(report, file, indent=1)
    show(report)


if __name__ == "__main__":
    main()
