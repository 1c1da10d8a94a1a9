"""em and heinsen on one GPU: fused layers against a float64 reference, then time and memory of a training step.

    python -m benchmarks.fit_gpu [--out FOLDER] [--only em] [--profile]

A step is forward + backward, replayed from a captured graph with the second-level cache flushed in between; the
floor counts each vote once per pass. Kernels are compiled in a process per layer, side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import flashcaps
from flashcaps.routing import Routed

from . import provenance

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MULTIPLY_ADDS, BYTES = 33.5e12, 4.3e12  # per second: fp32 outside the tensor cores, and a copy, on one H200


class Layers(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, pose: Tensor, activation: Tensor | None = None) -> Routed:
        for layer in self.layers:
            routed = layer(pose, activation)
            pose, activation = routed.pose, routed.activation
        return routed


class Workload(NamedTuple):
    build: Callable[[str], nn.Module]
    inputs: tuple[tuple[int, ...], ...]  # of each layer: types and places, or children, and pose
    batch: int
    goal_ms: float
    public_ms: float
    votes: tuple[tuple[int, ...], ...]  # of each layer: rows per example, I, J, C, d, h


def em_layers(backend: str) -> nn.Module:
    matrix: dict[str, Any] = dict(in_dim=16, out_dim=16, pose="matrix", backend=backend)
    conv: dict[str, Any] = dict(in_types=32, out_types=32, kernel=3, **matrix)
    return Layers(
        flashcaps.ConvCapsules("em", stride=2, **conv),
        flashcaps.ConvCapsules("em", stride=1, **conv),
        flashcaps.DenseCapsules("em", in_capsules=32, out_capsules=10, shared=True, coordinates=True, **matrix),
    )


def heinsen_layers(backend: str) -> nn.Module:
    matrix: dict[str, Any] = dict(in_dim=16, out_dim=16, pose="matrix", backend=backend)
    return Layers(
        flashcaps.DenseCapsules("heinsen", in_capsules=None, out_capsules=64, **matrix),
        flashcaps.DenseCapsules("heinsen", in_capsules=64, out_capsules=5, **matrix),
    )


def sst_layers(backend: str) -> nn.Module:
    return Layers(
        flashcaps.DenseCapsules("heinsen", in_capsules=None, in_dim=64, out_capsules=64, out_dim=2, backend=backend),
        flashcaps.DenseCapsules("heinsen", in_capsules=64, in_dim=2, out_capsules=5, out_dim=2, backend=backend),
    )


WORKLOADS = {
    "em": Workload(
        em_layers, ((32, 16, 16, 16), (32, 7, 7, 16), (32, 5, 5, 16)), 64, 15.0, 460.0,
        ((49, 288, 32, 4, 4, 4), (25, 288, 32, 4, 4, 4), (1, 800, 10, 4, 5, 4)),
    ),
    "heinsen": Workload(
        heinsen_layers, ((5184, 16), (64, 16)), 20, 1.2, 27.0, ((1, 5184, 64, 4, 4, 4), (1, 64, 5, 4, 8, 4))
    ),
    "sst": Workload(
        sst_layers, ((1480, 64), (64, 2)), 20, 0.6, 18.6, ((1, 1480, 64, 1, 64, 2), (1, 64, 5, 1, 3, 2))
    ),
}  # fmt: skip


def floor_ms(workload: Workload, iterations: int = 3) -> float:
    """Multiply-adds, each vote made once forward and once backward, or bytes of inputs and their gradients."""
    adds = 0.0
    for rows, i, j, c, d, h in workload.votes:
        vote, dim = c * d * h, c * h
        forward, backward = vote + 6 * dim, 3 * vote + 9 * dim
        adds += workload.batch * rows * i * j * (forward + backward) * iterations
    moved = 2 * 4 * workload.batch * torch.Size(workload.inputs[0]).numel()
    return 1e3 * max(adds / MULTIPLY_ADDS, moved / BYTES)


def draw(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, *shape, device="cuda"), torch.rand(batch, *shape[:-1], device="cuda")


def step(layers: nn.Module, pose: Tensor, activation: Tensor) -> list[Tensor]:
    """Outputs and the gradients of everything."""
    leaves = [pose.requires_grad_(), activation.requires_grad_(), *layers.parameters()]
    routed = layers(pose, activation)
    weight = torch.linspace(-1, 1, routed.pose.numel(), device=pose.device, dtype=pose.dtype)
    loss = (routed.pose.flatten() * weight).sum() + routed.activation.square().sum()
    return [routed.pose, routed.activation, *torch.autograd.grad(loss, leaves)]


def check(workload: Workload, dtype: torch.dtype) -> dict[str, float]:
    """||x - reference|| / ||reference|| of outputs and of the worst gradient, and whether twice gives the same bits."""
    torch.manual_seed(1)
    layers = workload.build("triton").cuda()
    exact = workload.build("reference").cuda().double()
    exact.load_state_dict(layers.state_dict())
    pose, activation = draw(workload.inputs[0], min(workload.batch, 32))
    pose, activation = pose.to(dtype), activation.to(dtype)
    expected = step(exact, pose.detach().double(), activation.detach().double())
    actual = step(layers, pose.detach(), activation.detach())
    again = step(layers, pose.detach(), activation.detach())
    pairs = zip(actual, expected, strict=True)
    errors = [((a.double() - e).norm() / e.norm().clamp(min=1e-12)).item() for a, e in pairs]
    same = all(torch.equal(a, b) for a, b in zip(actual, again, strict=True))
    return {"output": max(errors[:2]), "gradient": max(errors[2:]), "same_bits": same, "all": errors}


def measure(workload: Workload, backend: str, replays: int = 30) -> dict[str, Any]:
    """Median ms of a replayed step, and the peak of memory it adds, in MiB."""
    torch.manual_seed(0)
    layers = workload.build(backend).cuda()
    pose, activation = draw(workload.inputs[0], workload.batch)
    flush = torch.empty(1 << 26, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(layers, pose, activation)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    step(layers, pose, activation)
    torch.cuda.synchronize()
    eager = 1e3 * (time.perf_counter() - begin)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(layers, pose, activation)
    times = []
    for _ in range(replays):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    kernels = profile(graph)
    return {"ms": statistics.median(times), "eager_ms": eager, "peak_mib": peak, "kernels": kernels}


def profile(graph: torch.cuda.CUDAGraph) -> list[tuple[str, int, float]]:
    """Kernels of one step by total time: name, calls, microseconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
    rows = [(x.key[:60], x.count // 3, x.device_time_total / 3) for x in found.key_averages()]
    return sorted(rows, key=lambda row: -row[2])


def warm_one(name: str, layer: int) -> None:
    workload = WORKLOADS[name]
    step(workload.build("triton").cuda().layers[layer], *draw(workload.inputs[layer], workload.batch))
    torch.cuda.synchronize()


def warm(names: list[str]) -> None:
    """Compile every layer's kernels, a process each."""
    code = "import benchmarks.fit_gpu as f; f.warm_one({!r}, {})"
    layers = [(name, layer) for name in names for layer in range(len(WORKLOADS[name].inputs))]
    jobs = [subprocess.Popen([sys.executable, "-c", code.format(*layer)]) for layer in layers]
    for job in jobs:
        job.wait()


def show_kernels(title: str, rows: list[tuple[str, int, float]]) -> None:
    for kernel, calls, us in rows:
        print(f"  {title:<8}{kernel:<62}{calls:>4} x {us / max(calls, 1):>8.1f} us = {us:>9.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT"), help="write the results as JSON here")
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--profile", type=int, default=8, help="kernels to list per workload")
    parser.add_argument("--no-check", action="store_true", help="only times, no comparison with float64")
    parser.add_argument("--matrix", action="store_true", help="time the matrix backend too")
    args = parser.parse_args()
    begin = time.perf_counter()
    warm(args.only)
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    results: dict[str, Any] = {**provenance("cuda"), "rows": []}
    for name in args.only:
        workload = WORKLOADS[name]
        row: dict[str, Any] = {"workload": name, "floor_ms": floor_ms(workload), "goal_ms": workload.goal_ms}
        torch.backends.cuda.matmul.allow_tf32 = False
        row["errors"] = {} if args.no_check else {str(dtype)[6:]: check(workload, dtype) for dtype in DTYPES}
        torch.backends.cuda.matmul.allow_tf32 = True
        row["triton"] = measure(workload, "triton")
        if args.matrix:
            row["matrix"] = measure(workload, "matrix")
        results["rows"].append(row)
        if args.out:
            Path(args.out, "fit_gpu.json").write_text(json.dumps(results, indent=1))
        show_kernels(name, row["triton"]["kernels"][: args.profile])
        for dtype, e in row["errors"].items():
            print(f"  {name:<8}{dtype:<9} out {e['output']:.1e} gradient {e['gradient']:.1e} same {e['same_bits']}")
    print(f"{'workload':<10}{'ms':>8}{'eager':>8}{'MiB':>8}{'floor':>8}{'goal':>8}{'public':>8}")
    for row in results["rows"]:
        t, w = row["triton"], WORKLOADS[row["workload"]]
        print(
            f"{row['workload']:<10}{t['ms']:>8.2f}{t['eager_ms']:>8.1f}{t['peak_mib']:>8.0f}{row['floor_ms']:>8.2f}"
            f"{w.goal_ms:>8.1f}{w.public_ms:>8.0f}"
        )
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
