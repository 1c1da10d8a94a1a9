"""Kernels compiled before they are needed, in several processes at a time.

On a fresh machine the first step compiles its kernels one after the other. `compile_kernels` runs the step without
launching anything, to learn which kernels it needs, and has other processes compile them into Triton's cache on disk,
where the first launch finds them. Those processes need no GPU.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .common import replay

Progress = Callable[[int, int], Any]  # is told how many kernels of how many are compiled


@dataclass(frozen=True)
class Pointer:
    """What the compiler needs to know of a tensor. Not a tuple, which Triton would take for several arguments."""

    dtype: torch.dtype
    address: int  # modulo 16

    def data_ptr(self) -> int:
        return self.address


class Job(NamedTuple):
    """A launch that is to be compiled."""

    module: str
    kernel: str
    given: tuple[Any, ...]
    constants: tuple[tuple[str, Any], ...]

    @property
    def function(self) -> Any:
        return getattr(importlib.import_module(self.module), self.kernel)


def warm_up(model: nn.Module, shape: Sequence[int], *, dtype: torch.dtype | None = None,
            progress: Progress = lambda done, of: None) -> int:  # fmt: skip
    """Compiles what forward and backward of a model on a GPU launch for inputs of this shape, batch included.

    dtype: autocast's. Returns the number of kernels; 0 without a GPU, or where all of them were compiled before.
    """
    weight = next(model.parameters())
    if not weight.is_cuda:
        return 0
    x = torch.rand(tuple(shape), dtype=weight.dtype, device=weight.device)
    trial = copy.deepcopy(model)  # so that the model's batch statistics stay as they are

    def step() -> None:
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            found = trial(x)
        scores = found if isinstance(found, Tensor) else found[0]
        scores.sum().backward()

    return compile_kernels(step, progress)


def compile_kernels(step: Callable[[], Any], progress: Progress = lambda done, of: None) -> int:
    """Compiles the kernels that `step` would launch. Returns how many of them were not compiled before.

    A kernel that cannot be compiled here is compiled, or its error raised, by its first launch.
    """
    jobs = launches_of(step)
    if not jobs:
        return 0
    import triton
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver

    target = driver.active.get_current_target()
    assembler = make_backend(target).hash()
    for job in jobs:
        replay.settle_key(job.function)
    sources = [(job, job.function.cache_key) for job in sorted(jobs, key=repr)]
    key = hashlib.sha256(repr((triton.__version__, target, assembler, sources)).encode()).hexdigest()
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    stamp = folder / f"flashcaps-{key}"
    if stamp.exists():
        return 0
    progress(0, len(jobs))
    compiled = compile_apart(jobs, target, assembler, progress)
    if compiled == len(jobs):
        folder.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return compiled


def launches_of(step: Callable[[], Any]) -> list[Job]:
    """One job for each kind of launch, the largest kernels first, since they take longest to compile.

    The step leaves the state of random numbers alone, so that a resumed run draws those it would have drawn.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), replay.dry_run() as launches:
        step()
    jobs: dict[Job, int] = {}
    for kernel, given, constants in launches:
        kinds = tuple(kind_of(x) for x in given)
        job = Job(kernel.fn.__module__, kernel.fn.__name__, kinds, tuple(sorted(constants.items())))
        jobs[job] = len(kernel.src)
    return sorted(jobs, key=lambda job: -jobs[job])


def kind_of(x: Any) -> Any:
    """A stand-in for x for which Triton compiles the same kernel: of integers it looks at 1 and at divisibility by 16.
    """
    if isinstance(x, Tensor):
        return Pointer(x.dtype, x.data_ptr() % 16)
    if isinstance(x, float):
        return 0.5
    if isinstance(x, bool) or x == 1:
        return x
    return (16 if x % 16 == 0 else 3) + (1 << 32) * (abs(x) >= 1 << 31)


def compile_apart(jobs: Sequence[Job], target: Any, assembler: str, progress: Progress) -> int:
    """Compiles the jobs in one process per core; returns how many succeeded. The queue is a pipe of job numbers.

    assembler: the assembler's part of the keys in Triton's cache. A process determines it once, so that other processes
    would find another where Inductor has set TRITON_PTXAS_PATH since.
    """
    queue, numbers = os.pipe()
    os.write(numbers, b"".join(k.to_bytes(2, "little") for k in range(len(jobs))))
    os.close(numbers)
    answers, told = os.pipe()
    environment = {k: x for k, x in os.environ.items() if k != "TRITON_INTERPRET"}
    with tempfile.NamedTemporaryFile() as file:
        pickle.dump((target.backend, target.arch, target.warp_size, assembler, jobs), file)
        file.flush()
        command = [sys.executable, "-c", f"from {__name__} import main; main()", file.name]
        count = min(len(jobs), os.cpu_count() or 1)
        workers = [subprocess.Popen(command, stdin=queue, stdout=told, env=environment) for _ in range(count)]
        os.close(queue)
        os.close(told)
        compiled = 0
        with os.fdopen(answers) as lines:
            for done, line in enumerate(lines, 1):
                compiled += line == "compiled\n"
                progress(done, len(jobs))
        for worker in workers:
            worker.wait()
    return compiled


def main() -> None:
    """The main function of such a process: takes job numbers until there are none, and answers each with a line."""
    from triton.backends.amd.driver import HIPLauncher
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver

    *target, assembler, jobs = pickle.loads(Path(sys.argv[1]).read_bytes())
    stand_in = {"device": 0, "stream": 0, "target": GPUTarget(*target)}  # for a GPU, of which this process has none
    driver.set_active(SimpleNamespace(**{f"get_current_{k}": lambda *_, x=x: x for k, x in stand_in.items()}))
    type(make_backend(GPUTarget(*target))).hash = lambda _: assembler
    launcher = {"cuda": CudaLauncher, "hip": HIPLauncher}[target[0]]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else that is printed may look like an answer
    while number := os.read(0, 2):
        job = jobs[int.from_bytes(number, "little")]
        try:
            replay.settle_key(job.function)
            kernel = job.function.run(*job.given, grid=(1, 1, 1), warmup=True, **dict(job.constants))
            with suppress(Exception):  # up to Triton 3.6 a C compiler makes a launcher for each; later there is one
                launcher(kernel.src, kernel.metadata)
            print("compiled", file=answers, flush=True)
        except Exception as error:
            print(type(error).__name__, file=answers, flush=True)
