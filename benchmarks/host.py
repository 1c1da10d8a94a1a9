"""What an eager step costs the host, without a device: python -m benchmarks.host [heinsen_norb ...] [--save FILE]

A small network in a plain loop takes as long as Python needs to launch its kernels, however fast those are. Here the
steps of `workloads` run as on a GPU, but nothing is computed there: kernels are compiled for one and their arguments
are bound, a driver that only counts takes the place of the device, and tensors lie in the host's memory. What remains
is this library's Python and torch's own work for each call.

What torch computes itself would run on the CPU here. So convolutions only make the memory of their results, and sizes
are small: narrow backbones, few examples, few children. Modules and operators are those of the full size, and so are
launches, but where a sum is cut in more parts there. What a GPU adds is missing: launches, `torch.empty` and
convolutions take a few microseconds more each, and autograd runs the backward pass in another thread. Numbers compare
two versions on one machine, and say nothing about another.

--profile prints where the time goes, by cProfile, which itself makes Python's share larger.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import os
import pkgutil
import pstats
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.knobs import HookChain
from triton.runtime import driver

import flashcaps.kernels
from flashcaps.kernels.common.operators import Operator
from flashcaps.kernels.common.rows import DTYPES
from flashcaps.nn.backbones import ChannelsLast
from flashcaps.routing import checks

from . import provenance
from .measure import Stepper
from .workloads import Workload, table

LIBRARY = torch.library.Library("aten", "IMPL")
CIFAR = {"image": (3, 16, 16), "backbone": {"stages": ((4, 3, 1), (8, 4, 2))}}
SMALL: dict[str, dict[str, Any]] = {  # what differs from the toys of `table`
    "heinsen_norb": {"batch": 4, "inputs": (256, 16), "layers": table()["heinsen_norb"].layers},
    "attention_resnet_2": {"model": ("attention_resnet_cifar10", {"iterations": 2, **CIFAR}), "inputs": CIFAR["image"]},
    "em_smallnorb": {},
    "capsnet_mnist_adam": {},
    "dynamic_mnist": {},
    "discriminative_step": {},
}


class CountingDriver:
    """Stands for a device of compute capability 9.0: kernels compile and load, and launches are counted."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []  # (grid, stream, kernel, arguments)
        self.utils = self
        self.stream = 0

    def load_binary(self, name: str, *_: Any) -> tuple[Any, ...]:
        return name, name, 32, 0, 1024

    def unload_module(self, module: str) -> None:
        """Asked for by Triton from 3.8 on."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return self.stream

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> CudaLauncher:
        """Triton's own, around a function that counts."""
        launcher = object.__new__(CudaLauncher)
        sizes = {"global_scratch_size": 0, "profile_scratch_size": 0, "num_ctas": 1, "gsan_enabled": False}
        known = {"launch_cooperative_grid": False, "launch_pdl": False, "arg_annotations": [], "kernel_signature": b""}
        launcher.__dict__.update(launch=self.count, global_scratch_align=1, profile_scratch_align=1, **sizes, **known)
        return launcher

    def count(self, x: int, y: int, z: int, stream: int, function: Any, *given: Any) -> None:
        """The call of a kernel with its arguments, the last in one tuple; Triton 3.6 lists them, after eight others."""
        for hook in given:
            if isinstance(hook, HookChain):
                hook(None)
        self.launches.append(((x, y, z), stream, function, given[-1] if given[2] else given[8:]))


class QuietDriver(CountingDriver):
    """Takes hardly any time for a launch. None of those in a plan has hooks."""

    def count(self, *given: Any) -> None:
        self.launches.append(given)


def convolution(x: Tensor, weight: Tensor, bias: Any, stride: list[int], padding: list[int], *_: Any) -> Tensor:
    """In the place of torch's: memory for the result, channels last."""
    size = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True)]
    return torch.empty((x.shape[0], weight.shape[0], *size), dtype=x.dtype, memory_format=torch.channels_last)


def convolution_backward(g: Tensor, x: Tensor, weight: Tensor, bias: Any, *given: Any) -> tuple[Tensor | None, ...]:
    wanted = zip((x, weight, g[0, :, 0, 0]), given[-1], strict=True)
    return tuple([torch.empty_like(y) if asked else None for y, asked in wanted])


def pretend() -> CountingDriver:
    """Makes the library take the host for a GPU. Kernels have to be imported before they would be interpreted."""
    for function in (convolution, convolution_backward):
        LIBRARY.impl(function.__name__, function, "CPU")
    for module in pkgutil.walk_packages(flashcaps.kernels.__path__, "flashcaps.kernels."):
        importlib.import_module(module.name)
    counter = QuietDriver()
    driver.set_active(counter)
    os.environ["TRITON_INTERPRET"] = "1"  # layers take tensors of the host for a device's
    ChannelsLast.device = "cpu"
    answers = {"fused": lambda x: x.dtype in DTYPES and x.numel() > 0, "can_look": lambda x: x.device.type == "cuda"}
    for name, loaded in list(sys.modules.items()):
        for question, answer in answers.items():
            if name.startswith("flashcaps.") and hasattr(loaded, question):
                setattr(loaded, question, answer)
    assert not checks.can_look(torch.empty(1))
    return counter


class Step(Stepper):
    """The eager step of a workload, and how long each of its parts takes."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, "triton", "tf32", "cpu")
        if workload.adam:
            self.optimiser = torch.optim.Adam(self.parameters, 1e-4, fused=True)
        self.wanted = [*self.parameters, *(x for x in self.sets[0][0] if x.requires_grad)]
        self.step()
        self.gradients = self.sets[0][1]

    def timed(self) -> tuple[float, float, float]:
        """Seconds of forward, backward and the optimiser."""
        if self.optimiser is not None:
            self.optimiser.zero_grad()
        begin = time.perf_counter()
        outputs = self.outputs()
        middle = time.perf_counter()
        if self.optimiser is None:
            torch.autograd.grad(outputs, self.wanted, self.gradients, allow_unused=True)
        else:
            torch.autograd.backward(outputs, self.gradients)
        end = time.perf_counter()
        if self.optimiser is not None:
            self.optimiser.step()
        return middle - begin, end - middle, time.perf_counter() - end


def measure(workload: Workload, counter: CountingDriver, repeats: int, shown: bool) -> dict[str, Any]:
    """The fastest of many steps, part by part: other work on the machine only ever adds to it."""
    step = Step(workload)
    times = [1.0] * 3
    for _ in range(repeats):
        counter.launches.clear()
        times = [min(pair) for pair in zip(times, step.timed(), strict=True)]
    counter.launches.clear()
    profile = cProfile.Profile()
    profile.runcall(step.timed)
    row = {"workload": workload.name, **counted(profile), "launches": len(counter.launches)}
    if shown:
        profile = cProfile.Profile()
        for _ in range(50):
            profile.runcall(step.timed)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    names = ("forward_us", "backward_us", "optimiser_us")
    return {**row, **{name: round(1e6 * x) for name, x in zip(names, times, strict=True)},
            "step_us": round(1e6 * sum(times))}  # fmt: skip


def counted(profile: cProfile.Profile) -> dict[str, int]:
    """Calls in one step: of operators, lines of their plans, calls of torch from Python, and of anything."""
    found = dict.fromkeys(("operators", "plan_lines", "torch_calls", "calls"), 0)
    for entry in profile.getstats():
        code, calls = entry.code, entry.callcount
        found["calls"] += calls
        if code is Operator.__call__.__code__:
            found["operators"] += calls
        elif isinstance(code, CodeType) and code.co_filename == "<plan>":
            found["plan_lines"] += calls * (len({line for *_, line in code.co_lines()}) - 1)
        elif isinstance(code, str) and "torch" in code:
            found["torch_calls"] += calls
    return found


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("names", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(SMALL)} (default: all)")
    ask.add_argument("--repeats", type=int, default=500, help="steps of each, of which the fastest counts")
    ask.add_argument("--profile", action="store_true", help="where the time goes")
    ask.add_argument("--save", type=Path, help="a JSON file for the rows")
    given = ask.parse_args()
    if wrong := [name for name in given.names if name not in SMALL]:
        ask.error(f"WORKLOAD: expected {', '.join(SMALL)}, got {wrong[0]!r}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        ask.error("TRITON_INTERPRET: expected it unset, for kernels that are compiled")
    counter = pretend()
    torch.set_num_threads(1)
    rows = []
    for name in given.names or SMALL:
        row = measure(replace(table(toy=True)[name], **SMALL[name]), counter, given.repeats, given.profile)
        rows.append(row)
        print(*(f"{key} {x}" for key, x in row.items()), sep="   ", flush=True)
    if given.save:
        given.save.write_text(json.dumps({**provenance(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
