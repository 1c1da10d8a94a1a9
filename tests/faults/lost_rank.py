"""Of two ranks one is killed: the other ends and names it, nothing stays behind, and one, two or torchrun go on."""

import contextlib
import functools
import os
import signal
from pathlib import Path

import pytest
from torch.distributed import run as launcher

from .child import Child, assert_same, metrics, prepare, ranks, start, train_arguments

ENDS_S = 60
OPTIONS = ("epochs=6", "save_seconds=0")
LAUNCH = ["--standalone", "--nproc_per_node=2"]


def try_all(folder: Path, full: bool) -> int:
    prepare(folder)
    for child in ranks(folder, "whole", *OPTIONS):
        child.ends_with(0)
    trials = [(lost, world) for lost in (0, 1) for world in (1, 2)] if full else [(1, 1)]
    for lost, world in trials:
        _killed(folder, lost, world)
    _terminated(folder)
    if full:
        _restarted_by_torchrun(folder)
        _survivor_under_torchrun(folder)
    return len(trials) + (3 if full else 1)


def _killed(folder: Path, lost: int, world: int) -> None:
    """Rank `lost` is killed, the survivor judged, and the run gone on with by `world` processes."""
    name = f"killed-{lost}-{world}"
    both = ranks(folder, name, *OPTIONS)
    both[0].wait_for(lambda: len(metrics(folder / name)) >= 9)
    both[lost].kill_after(0)
    survivor = both[1 - lost]
    code = survivor.wait(ENDS_S)
    assert code not in (0, 1000), f"{name}: exit code {code}"
    assert f"lost rank {lost} of 2" in survivor.output, survivor.output
    alone = [] if world == 2 else [start(folder, name, *OPTIONS, "--resume")]
    for child in alone or ranks(folder, name, *OPTIONS, "--resume"):
        child.ends_with(0)
    if world == 2:
        assert_same(folder / name, folder / "whole")
    else:  # one sums the same numbers in another order
        losses, expected = ([m["loss"] for m in metrics(folder / n) if m["kind"] == "train"] for n in (name, "whole"))
        assert losses == pytest.approx(expected, rel=1e-3)


def _terminated(folder: Path) -> None:
    """SIGTERM to both: a state is saved, both leave with 143, and the end is the same."""
    both = ranks(folder, "terminated", "epochs=6")
    both[0].wait_for(lambda: len(metrics(folder / "terminated")) >= 9)
    for child in both:
        os.kill(child.process.pid, signal.SIGTERM)
    for child in both:
        child.ends_with(143)
    for child in ranks(folder, "terminated", *OPTIONS, "--resume"):
        child.ends_with(0)
    assert_same(folder / "terminated", folder / "whole")


def _launched(folder: Path, name: str, *flags: str) -> Child:
    """torchrun, which marks the environment of the ranks it starts."""
    words = [*LAUNCH, *flags, "-m", "flashcaps", *train_arguments(folder, name, *OPTIONS)]
    environment = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "FAULTS_MARK": str(folder / name)}
    launched = Child([], folder / f"{name}.log", functools.partial(launcher.main, words), environment)
    launched.wait_for(lambda: len(metrics(folder / name)) >= 9)
    for pid, rank in _ranks(folder / name).items():
        if rank == "1":
            os.kill(pid, signal.SIGKILL)
    return launched


def _ranks(run: Path) -> dict[int, str]:
    """The processes of a run that torchrun started, and their ranks."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            text = (process / "environ").read_bytes().decode(errors="replace")
            its = dict(entry.partition("=")[::2] for entry in text.split("\0"))
            if its.get("FAULTS_MARK") == str(run):
                found[int(process.name)] = its.get("RANK", "")
    return found


def _restarted_by_torchrun(folder: Path) -> None:
    """--max-restarts: killed, started again by torchrun, gone on by itself."""
    launched = _launched(folder, "restarted", "--max-restarts=2")
    launched.ends_with(0)
    assert "failed (exitcode: -9)" in launched.output, launched.output[-600:]
    assert _ranks(folder / "restarted") == {}
    assert metrics(folder / "restarted") == metrics(folder / "whole")


def _survivor_under_torchrun(folder: Path) -> None:
    launched = _launched(folder, "agent")
    code = launched.wait(ENDS_S)
    assert code not in (0, 1000), f"torchrun: exit code {code}"
    assert "rank : 1" in launched.output, launched.output[-600:]
    assert _ranks(folder / "agent") == {}
