"""What all faults share: training processes to be hurt, and what must be as if nothing had happened.

Processes are forked from a server that has imported everything, so that one starts at once.
"""

import functools
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimiser would import, in every child anew

from flashcaps.cli import main as command_line
from flashcaps.training import loop as training
from flashcaps.training.run_folder import read_metrics
from tests.fake_data import SMALL_TOML, write_idx

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.child"])
LIMIT_S = 300  # no trial takes this long; one that does hangs, and is lost


class Child:
    """`flashcaps ARGUMENTS` in a process of its own; `patch` (a picklable function) is called in it first, or alone."""

    def __init__(self, arguments: list[str], log: Path, patch: Any = None, environment: dict[str, str] | None = None):
        self.log = log
        self.process: BaseProcess = FORKS.Process(target=_run, args=(arguments, log, patch, environment or {}))
        self.process.start()

    @property
    def output(self) -> str:
        return " ".join(self.log.read_text(errors="replace").split()) if self.log.is_file() else ""

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code, negative for a signal, as multiprocessing says it; 1000 where it never ends."""
        return 1000 if self.kill_after(limit_s) else self.process.exitcode

    def ends_with(self, *codes: int) -> None:
        """Asserts its exit code."""
        code = self.wait()
        assert code in codes, f"exit code {code}: {self.output[-600:]}"

    def kill_after(self, seconds: float) -> bool:
        """SIGKILL; whether it was still alive."""
        self.process.join(seconds)
        alive = self.process.is_alive()
        self.process.kill()
        self.process.join()
        return alive

    def wait_for(self, ready: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        """Until `ready`, or the end of the process."""
        until = time.monotonic() + limit_s
        while self.process.is_alive() and not ready():
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return ready()


def _run(arguments: list[str], log: Path, patch: Any, environment: dict[str, str]) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plain_runs()
    try:
        if patch is not None:
            patch()
        if arguments:
            command_line(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def plain_runs() -> None:
    """No pictures at the end, and everything that a step changes in a file beside the run's folder."""
    finish = training.finish

    def told(step: Any, sources: Any, run: Any, at: int) -> Any:
        write_end(step, run.path)
        return finish(step, sources, run, at)

    training.finish = told  # type: ignore[assignment]
    training.draw_pictures = lambda *_: None


def write_end(step: Any, folder: Path) -> None:
    if step.workers.rank == 0:
        parts = {name: x for name, x in step.state_dict().items() if name != "totals"}
        torch.save(parts | {"random": torch.get_rng_state()}, f"{folder}.end")


def read_end(folder: Path) -> dict[str, Any]:
    """Weights, averaged weights, optimiser and random state as a run left them."""
    return torch.load(f"{folder}.end", weights_only=True)


assert_equal = functools.partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)


def prepare(folder: Path) -> Path:
    """A recipe file and its data; and the server of children is there, so that the first is as fast as the others."""
    server = FORKS.Process(target=int)
    server.start()
    server.join()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL_TOML)
    write_idx(folder / "data")
    return folder


def train_arguments(folder: Path, out: str, *more: str) -> list[str]:
    return ["train", str(folder / "small.toml"), "--device", "cpu", "--data", str(folder / "data"),
            "--out", str(folder / out), *more]  # fmt: skip


def start(folder: Path, out: str, *more: str, patch: Any = None, **environment: str) -> Child:
    return Child(train_arguments(folder, out, *more), folder / f"{out}.log", patch, environment)


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def rank_environments(world: int = 2) -> list[dict[str, str]]:
    """What torchrun would tell each process of a run on this machine."""
    where = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
             "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    return [where | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def ranks(folder: Path, out: str, *more: str, patch: Any = None) -> list[Child]:
    """Two processes of one run."""
    arguments = train_arguments(folder, out, *more)
    return [Child(arguments, folder / f"{out}-{rank}.log", patch, environment)
            for rank, environment in enumerate(rank_environments())]  # fmt: skip


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    return [{k: v for k, v in m.items() if k not in ("seconds", "images_s")} for m in read_metrics(folder)]


def assert_same(folder: Path, reference: Path) -> None:
    """Two finished runs agree bit for bit: weights, optimiser, random state, metrics."""
    assert_equal(read_end(folder), read_end(reference))
    assert metrics(folder) == metrics(reference), f"{folder.name}: the metric log differs"
    for name in ("last", "ema", "best"):
        a, b = (f / f"{name}.safetensors" for f in (folder, reference))
        assert a.read_bytes() == b.read_bytes(), f"{folder.name}: {name}.safetensors differs"
