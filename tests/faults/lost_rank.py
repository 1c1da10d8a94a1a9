"""Of two ranks one is killed: the other ends and names it, nothing stays behind, and one, two or torchrun go on."""

import contextlib
import functools
import os
import signal
import time
from pathlib import Path

from torch.distributed import run as launcher

from .child import Child, Row, differences, finished, lines_of, metrics, prepare, ranks, start, train_arguments

ENDS_S = 60
OPTIONS = ("epochs=6", "save_seconds=0")
LAUNCH = ["--standalone", "--nproc_per_node=2"]


def try_all(folder: Path, full: bool) -> Row:
    row = Row("one of two processes killed; SIGTERM; restart")
    prepare(folder)
    whole = ranks(folder, "whole", *OPTIONS)
    if not finished(row, *whole):
        return row
    for lost in (0, 1) if full else (1,):
        for world in (1, 2) if full else (1,):
            _killed(folder, lost, world, row)
    _terminated(folder, row)
    if full:
        _restarted_by_torchrun(folder, row)
        _survivor_under_torchrun(folder, row)
    return row


def _killed(folder: Path, lost: int, world: int, row: Row) -> None:
    """Rank `lost` is killed, the survivor judged, and the run gone on with by `world` processes."""
    name = f"killed-{lost}-{world}"
    both = ranks(folder, name, *OPTIONS)
    both[0].wait_for(lambda: lines_of(folder / name) >= 9)
    both[lost].kill_after(0)
    killed = time.monotonic()
    survivor = both[1 - lost]
    code, seconds = survivor.wait(), time.monotonic() - killed
    wrong = [] if code not in (0, 1000) and seconds < ENDS_S else [f"exit code {code} after {seconds:.0f} s"]
    wrong += [] if f"lost rank {lost} of 2" in survivor.output else [f"message {survivor.output[-300:]!r}"]
    again: list[Child] = (ranks(folder, name, *OPTIONS, "--resume") if world == 2 else
                          [start(folder, name, *OPTIONS, "--resume")])  # fmt: skip
    codes = [child.wait() for child in again]
    wrong += [f"resumed: exit code {c}, {child.output[-300:]}" for c, child in zip(codes, again, strict=True) if c]
    wrong += [] if any(codes) else _goes_on(folder / name, folder / "whole", world)
    row.count(*(f"{name}: {w}" for w in wrong))


def _goes_on(run: Path, whole: Path, world: int) -> list[str]:
    """Two give the same bits as ever; one sums the same numbers in another order."""
    if world == 2:
        return differences(run, whole)
    losses, expected = ([m["loss"] for m in metrics(f) if m["kind"] == "train"] for f in (run, whole))
    near = len(losses) == len(expected) and all(abs(a - b) <= 1e-3 * b for a, b in zip(losses, expected, strict=True))
    return [] if near else [f"losses {losses[-3:]}, expected {expected[-3:]} ({len(losses)} of {len(expected)})"]


def _terminated(folder: Path, row: Row) -> None:
    """SIGTERM to both: a state is saved, both leave with 143, and the end is the same."""
    both = ranks(folder, "terminated", "epochs=6")
    both[0].wait_for(lambda: lines_of(folder / "terminated") >= 9)
    for child in both:
        os.kill(child.process.pid, signal.SIGTERM)
    codes = [child.wait() for child in both]
    again = ranks(folder, "terminated", *OPTIONS, "--resume")
    resumed = [child.wait() for child in again]
    row.count("" if codes == [143, 143] else f"SIGTERM: exit codes {codes}: {both[0].output[-300:]}",
              "" if resumed == [0, 0] else f"after SIGTERM: exit codes {resumed}: {again[0].output[-300:]}",
              *differences(folder / "terminated", folder / "whole"))  # fmt: skip


def _launched(folder: Path, name: str, *flags: str) -> Child:
    """torchrun, which marks the environment of the ranks it starts."""
    words = [*LAUNCH, *flags, "-m", "flashcaps", *train_arguments(folder, name, *OPTIONS)]
    environment = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "FAULTS_MARK": str(folder / name)}
    launched = Child([], folder / f"{name}.log", functools.partial(launcher.main, words), environment)
    launched.wait_for(lambda: lines_of(folder / name) >= 9)
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


def _restarted_by_torchrun(folder: Path, row: Row) -> None:
    """--max-restarts: killed, started again by torchrun, gone on by itself."""
    run = folder / "restarted"
    launched = _launched(folder, "restarted", "--max-restarts=2")
    code, orphans = launched.wait(), _ranks(run)
    restarts = launched.output.count("failed (exitcode: -9)")
    row.count("" if code == 0 and restarts else f"torchrun: exit code {code}: {launched.output[-600:]}",
              f"orphans {orphans}" if orphans else "",
              "" if metrics(run) == metrics(folder / "whole") else "the metric log differs")  # fmt: skip


def _survivor_under_torchrun(folder: Path, row: Row) -> None:
    launched = _launched(folder, "agent")
    killed = time.monotonic()
    code, seconds, orphans = launched.wait(), time.monotonic() - killed, _ranks(folder / "agent")
    row.count("" if code and seconds < ENDS_S else f"torchrun: exit code {code} in {seconds:.0f} s",
              "" if "rank : 1" in launched.output else f"torchrun: message {launched.output[-600:]!r}",
              f"orphans {orphans}" if orphans else "")  # fmt: skip
