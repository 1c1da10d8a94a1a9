"""Whole training steps, optimiser included: the peak of their memory, and where their time goes."""

from __future__ import annotations

import time
from typing import Any

import torch

from .measure import Stepper, autocast, peak_of
from .workloads import Workload

TOP = 25  # kernels listed per step


def training_peak(workload: Workload, backend: str, precision: str, device: str) -> dict[str, Any]:
    """Memory of a training step with Adam: everything allocated at its peak, and what the allocator held."""
    stepper = Stepper(workload, backend, precision, device)
    optimiser = torch.optim.Adam(stepper.parameters, 1e-3)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with autocast(device, precision):
            (loss,) = stepper.module(*stepper.sets[0][0])
        loss.backward()
        optimiser.step()

    step()
    _, peak = peak_of(step, device)
    begin = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    row: dict[str, Any] = {"step_ms": round(1e3 * (time.perf_counter() - begin), 3)}
    if peak is not None:
        row |= {"peak_gb": round(peak / 1e9, 3), "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 3)}
    return row


def profile(workload: Workload, backend: str, precision: str, device: str) -> str:
    """The kernels of one eager step by total time, their sum, and the time of the step."""
    stepper = Stepper(workload, backend, precision, device)
    for _ in range(3):
        stepper.step()
    cuda = device == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU]
    if cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.profiler.profile(activities=kinds) as found:
        stepper.step()
        if cuda:
            torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - begin)
    rows = []
    for event in found.key_averages():
        us = event.self_device_time_total if cuda else event.self_cpu_time_total
        if us > 0:
            rows.append((us, event.count, event.key))
    rows.sort(reverse=True)
    total = sum(us for us, _, _ in rows)
    lines = [
        f"{workload.title}, {backend}, {precision}: {total / 1e3:.3f} ms in {sum(n for _, n, _ in rows)} kernels, "
        f"{wall:.1f} ms wall with the profiler"
    ]
    lines += [f"{us / 1e3:>9.3f} ms {us / total:>6.1%} {n:>5} x  {key[:110]}" for us, n, key in rows[:TOP]]
    return "\n".join(lines) + "\n"
