"""Peak memory of fused layers, counted without a GPU: python -m benchmarks.memory [dynamic/I em/image/16 ...]

Memory is decided by what is allocated around the kernels, not by what they compute. So forward + backward run on the
CPU at full size with kernels that do nothing, and every allocation is counted, rounded up as a CUDA device would. A
device can have a little more: casts, and a workspace of the matrix library. What one measured is `of_bytes` in
results/bench/h200.json, for the commit named there.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .measure import MIB, Stepper
from .sweeps import points
from .workloads import Workload, table

BLOCK = 512  # bytes a CUDA device hands out at a time


@contextmanager
def no_kernels() -> Iterator[None]:
    """Triton's kernels do nothing; needs TRITON_INTERPRET=1 before any is defined."""
    from triton.runtime.interpreter import InterpretedFunction

    launch = InterpretedFunction.__getitem__
    InterpretedFunction.__getitem__ = lambda self, grid: lambda *_, **__: None
    try:
        yield
    finally:
        InterpretedFunction.__getitem__ = launch


def rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def peak(workload: Workload) -> tuple[int, int]:
    """Bytes at the peak of one step on the `triton` backend, and those of inputs, outputs, weights and gradients."""
    with no_kernels():
        stepper = Stepper(workload, "triton", "tf32", "cpu")
        stepper.step()  # what is made once
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as recorded:
            stepper.step()
    now = highest = 0
    events: Any = recorded.profiler
    for event in events.kineto_results.events():
        if event.name() == "[memory]":
            size = event.nbytes()
            now += rounded(size) if size > 0 else -rounded(-size)
            highest = max(highest, now)
    inputs, gradients = stepper.sets[0]
    held: list[Tensor] = [*stepper.module.parameters(), *stepper.module.buffers(), *inputs, *(gradients or ())]
    return highest + sum(rounded(x.nbytes) for x in held), stepper.bytes()


def layers() -> dict[str, Workload]:
    """Every point of the sweep, and the layers of the table."""
    return {**points(), **{name: w for name, w in table().items() if not w.whole}}


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("names", nargs="*", help="points of the sweep or what they begin with (default: all)")
    given, known = ask.parse_args(), layers()
    wrong = [wanted for wanted in given.names if not any(name.startswith(wanted) for name in known)]
    if wrong:
        ask.error(f"names: expected what one begins with, as dynamic/I, em/image/16 or em_stack, got {wrong[0]!r}")
    for name, workload in known.items():
        if given.names and not name.startswith(tuple(given.names)):
            continue
        most, own = peak(workload)
        print(f"{name:<24} {most / MIB:8.2f} MiB, {most / own:.2f} x its bytes", flush=True)


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    main()
