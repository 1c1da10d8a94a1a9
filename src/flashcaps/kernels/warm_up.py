"""Kernels compiled before they are needed, in several processes at a time.

A fresh machine would compile the kernels of a first step one after the other. `compile_kernels` runs the step with no
kernel launched, which says what is to be compiled, and has other processes compile it into Triton's own cache on disk,
where the first launch finds it. They need no GPU.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .common import replay

Progress = Callable[[int, int], Any]  # is told how many kernels of how many are compiled


@dataclass(frozen=True)
class Pointer:
    """What a compiler wants to know of a tensor."""

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

    def compile(self) -> None:
        self.function.run(*self.given, grid=(1, 1, 1), warmup=True, **dict(self.constants))


def warm_up(model: nn.Module, shape: Sequence[int], *, dtype: torch.dtype | None = None,
            progress: Progress = lambda done, of: None) -> int:  # fmt: skip
    """Compiles what forward and backward of a model on a GPU launch for inputs of this shape, batch included.

    dtype: autocast's. Returns the number of kernels; 0 without a GPU, or where all of them were compiled before.
    """
    weight = next(model.parameters())
    if not weight.is_cuda:
        return 0
    x = torch.rand(tuple(shape), dtype=weight.dtype, device=weight.device)
    trial = copy.deepcopy(model)  # whose statistics change

    def step() -> None:
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            found = trial(x)
        scores = found if isinstance(found, Tensor) else found[0]
        scores.sum().backward()

    return compile_kernels(step, progress)


def compile_kernels(step: Callable[[], Any], progress: Progress = lambda done, of: None) -> int:
    """Compiles what `step` launches, without launching it. Returns the number of kernels that were not there before."""
    jobs = launches_of(step)
    stamp = cache_folder() / f"flashcaps-{key_of(jobs)}"
    if not jobs or stamp.exists():
        return 0
    progress(0, len(jobs))
    compiled = compile_apart(jobs, progress)
    if compiled == len(jobs):
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return compiled


def launches_of(step: Callable[[], Any]) -> list[Job]:
    """One of each kind, the largest kernels, which take longest, first."""
    with replay.dry_run() as launches:
        step()
    jobs: dict[Job, int] = {}
    for kernel, given, constants in launches:
        kinds = tuple(kind_of(x) for x in given)
        job = Job(kernel.fn.__module__, kernel.fn.__name__, kinds, tuple(sorted(constants.items())))
        jobs[job] = len(kernel.src)
    return sorted(jobs, key=lambda job: -jobs[job])


def kind_of(x: Any) -> Any:
    """An argument that kernels are compiled for as for x: they know of numbers whether these are 1 or divide by 16."""
    if isinstance(x, Tensor):
        return Pointer(x.dtype, x.data_ptr() % 16)
    if isinstance(x, float):
        return 0.5
    if isinstance(x, bool) or x == 1:
        return x
    return (16 if x % 16 == 0 else 3) + (1 << 32) * (abs(x) >= 1 << 31)


def key_of(jobs: Sequence[Job]) -> str:
    import triton

    sources = sorted({(job.kernel, job.function.cache_key) for job in jobs})
    return hashlib.sha256(repr((triton.__version__, target(), sources, sorted(map(repr, jobs)))).encode()).hexdigest()


def target() -> tuple[Any, ...]:
    """Of the GPU: what kernels are compiled for."""
    from triton.runtime import driver

    found = driver.active.get_current_target()
    return found.backend, found.arch, found.warp_size


def cache_folder() -> Path:
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def compile_apart(jobs: Sequence[Job], progress: Progress) -> int:
    """How many are compiled. Each process takes the next when it is done with one; what fails, its launch reports."""
    waiting, lock = iter(jobs), threading.Lock()
    answers: list[bytes] = []
    here, environment = target(), {k: x for k, x in os.environ.items() if k != "TRITON_INTERPRET"}

    def follow() -> None:
        command = [sys.executable, "-c", f"from {__name__} import main; main()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            pickle.dump(here, worker.stdin)
            while True:
                with lock:
                    job = next(waiting, None)
                try:
                    pickle.dump(job, worker.stdin)
                    worker.stdin.flush()
                except BrokenPipeError:
                    return
                if job is None or not (answer := worker.stdout.readline()):
                    return
                with lock:
                    answers.append(answer)
                    progress(len(answers), len(jobs))

    threads = [threading.Thread(target=follow) for _ in range(min(len(jobs), processes()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers.count(b"compiled\n")


def processes() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CompilingDriver:
    """Stands for a GPU that kernels are compiled for, in a process that has none."""

    def __init__(self, backend: str, arch: Any, warp_size: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(backend, arch, warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target


def main() -> None:
    """What such a process runs. Compiles the jobs that come, one line of answer for each, until None comes."""
    from triton.runtime import driver

    driver.set_active(CompilingDriver(*pickle.load(sys.stdin.buffer)))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed must not look like an answer
    while (job := pickle.load(sys.stdin.buffer)) is not None:
        try:
            job.compile()
            print("compiled", file=answers, flush=True)
        except Exception as error:
            print(type(error).__name__, file=answers, flush=True)
