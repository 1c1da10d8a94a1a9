"""What a step of a layer costs the host, without a device: python -m benchmarks.host [dynamic em ...] [--save FILE]

A small layer in a plain loop takes as long as Python needs to launch its kernels, however fast those are. Here kernels
are compiled for a GPU and their arguments are bound as there, but nothing is launched: a driver that only counts takes
the place of the device, and tensors lie in the host's memory. Layers are small, so that what torch computes on the
way is, too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.knobs import HookChain
from triton.runtime import driver

import flashcaps.kernels
from flashcaps import ConvCapsules, DenseCapsules
from flashcaps.training.environment import versions

CONV = {"in_types": 4, "in_dim": 16, "out_types": 32, "out_dim": 16, "kernel": 3, "pose": "matrix"}
LAYERS: dict[str, Callable[[], tuple[torch.nn.Module, list[Tensor]]]] = {
    "dynamic": lambda: (
        DenseCapsules("dynamic", in_capsules=32, in_dim=8, out_capsules=10, out_dim=16, backend="triton"),
        [torch.randn(16, 32, 8)],
    ),
    "attention": lambda: (
        ConvCapsules("attention", iterations=2, backend="triton", **CONV), [torch.randn(2, 4, 5, 5, 16)],
    ),
    "em": lambda: (
        ConvCapsules("em", iterations=3, backend="triton", **CONV),
        [torch.randn(2, 4, 5, 5, 16), torch.rand(2, 4, 5, 5)],
    ),
    "heinsen": lambda: (
        DenseCapsules("heinsen", in_capsules=None, in_dim=(4, 4), out_capsules=64, out_dim=(4, 4), backend="triton"),
        [torch.randn(4, 32, 16), torch.randn(4, 32)],
    ),
    "discriminative": lambda: (
        DenseCapsules("discriminative", in_capsules=32, in_dim=8, out_capsules=10, out_dim=16, backend="triton"),
        [torch.randn(16, 32, 8)],
    ),
}  # fmt: skip


class CountingDriver:
    """Stands for a device of compute capability 9.0: kernels compile and load, and launches are counted."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []  # (grid, stream, kernel, arguments)
        self.utils = self
        self.stream = 0

    def load_binary(self, name: str, *_: Any) -> tuple[Any, ...]:
        return name, name, 32, 0, 1024

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
        sizes = {"global_scratch_size": 0, "profile_scratch_size": 0, "num_ctas": 1}
        known = {"launch_cooperative_grid": False, "launch_pdl": False, "arg_annotations": [], "kernel_signature": b""}
        launcher.__dict__.update(launch=self.count, global_scratch_align=1, profile_scratch_align=1, **sizes, **known)
        return launcher

    def count(self, x: int, y: int, z: int, stream: int, function: Any, *given: Any) -> None:
        """The call of a kernel with its arguments, the last in one tuple as from Triton 3.7 on, or after six others."""
        for hook in given:
            if isinstance(hook, HookChain):
                hook(None)
        self.launches.append(((x, y, z), stream, function, given[-1] if isinstance(given[-1], tuple) else given[8:]))


def measure(name: str, repeats: int = 300) -> dict[str, Any]:
    """Microseconds and launches of the host, forward and backward: the fastest tenth of many calls, which what else
    runs on the machine disturbs least."""
    torch.manual_seed(0)
    layer, given = LAYERS[name]()
    given[0].requires_grad_()
    counter: Any = driver.active

    def step() -> tuple[float, float, int, int]:
        layer.zero_grad()
        given[0].grad = None
        counter.launches.clear()
        begin = time.perf_counter()
        pose = layer(*given).pose
        between, forward = time.perf_counter(), len(counter.launches)
        pose.backward(torch.ones_like(pose))
        return between - begin, time.perf_counter() - between, forward, len(counter.launches) - forward

    for _ in range(10):
        *_, forward, backward = step()
    there, back, *_ = zip(*(step() for _ in range(repeats)), strict=True)
    there, back = (sorted(times)[repeats // 10] for times in (there, back))
    return {"layer": name, "forward_us": round(1e6 * there), "backward_us": round(1e6 * back),
            "forward_launches": forward, "backward_launches": backward}


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("names", nargs="*", metavar="LAYER", help=f"of {', '.join(LAYERS)} (default: all)")
    ask.add_argument("--save", type=Path, help="a JSON file for the rows")
    given = ask.parse_args()
    if wrong := [name for name in given.names if name not in LAYERS]:
        ask.error(f"LAYER: expected {', '.join(LAYERS)}, got {wrong[0]!r}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        ask.error("TRITON_INTERPRET: expected it unset, for kernels that are compiled")
    for module in pkgutil.walk_packages(flashcaps.kernels.__path__, "flashcaps.kernels."):
        importlib.import_module(module.name)
    driver.set_active(CountingDriver())
    os.environ["TRITON_INTERPRET"] = "1"  # layers take tensors of the host for a device's
    torch.set_num_threads(1)
    rows = []
    for name in given.names or LAYERS:
        rows.append(row := measure(name))
        ways = [f"{x} {row[f'{x}_us']:5} us, {row[f'{x}_launches']:2} launches" for x in ("forward", "backward")]
        print(f"{name:15}", *ways, sep="   ", flush=True)
    if given.save:
        made = {"command": "python -m benchmarks.host", "versions": versions()}
        given.save.write_text(json.dumps({**made, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
