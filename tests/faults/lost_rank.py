"""6. Of two ranks one is killed: the other ends and names it, nothing stays behind, and one, two or torchrun go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.child import (
    LIMIT_S,
    Child,
    Row,
    differences,
    finished,
    lines_of,
    metrics,
    prepare,
    ranks,
    start,
    train_arguments,
)

ENDS_S = 60
OPTIONS = ("epochs=6", "save_seconds=0")
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def try_all(folder: Path, full: bool) -> Row:
    row = Row(6, "one of two processes killed; SIGTERM; restart")
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
        assert child.process.pid is not None
        os.kill(child.process.pid, signal.SIGTERM)
    codes = [child.wait() for child in both]
    again = ranks(folder, "terminated", *OPTIONS, "--resume")
    resumed = [child.wait() for child in again]
    row.count("" if codes == [143, 143] else f"SIGTERM: exit codes {codes}: {both[0].output[-300:]}",
              "" if resumed == [0, 0] else f"after SIGTERM: exit codes {resumed}: {again[0].output[-300:]}",
              *differences(folder / "terminated", folder / "whole"))  # fmt: skip


def _environment(process: Path) -> dict[str, str]:
    try:
        text = (process / "environ").read_bytes().decode(errors="replace")
    except OSError:  # it has ended, or is somebody else's
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))


class Launched:
    """torchrun, in an environment that marks it and all it starts."""

    def __init__(self, folder: Path, name: str, *flags: str) -> None:
        self.log = folder / f"{name}.log"
        command = [*LAUNCH, *flags, "-m", "flashcaps", *train_arguments(folder, name, *OPTIONS)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "FAULTS_MARK": str(self.log)}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def family(self) -> dict[int, str]:
        """The processes there are, and their ranks."""
        all_of_them = {int(p.name): _environment(p) for p in Path("/proc").glob("[0-9]*")}
        return {pid: e.get("RANK", "") for pid, e in all_of_them.items() if e.get("FAULTS_MARK") == str(self.log)}

    def wait_for(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT_S
        while self.process.poll() is None and not ready() and time.monotonic() < until:
            time.sleep(0.02)

    def kill_rank(self, rank: int) -> None:
        for pid, its in self.family().items():
            if its == str(rank):
                os.kill(pid, signal.SIGKILL)

    def wait(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid in self.family():
                os.kill(pid, signal.SIGKILL)
            return 1000

    @property
    def output(self) -> str:
        return " ".join(self.log.read_text(errors="replace").split())


def _restarted_by_torchrun(folder: Path, row: Row) -> None:
    """--max-restarts: killed, started again by torchrun, gone on by itself."""
    run = folder / "restarted"
    launched = Launched(folder, "restarted", "--max-restarts=2")
    launched.wait_for(lambda: lines_of(run) >= 9)
    launched.kill_rank(1)
    code = launched.wait()
    orphans = launched.family()
    same = [] if metrics(run) == metrics(folder / "whole") else ["the metric log differs"]
    restarts = launched.output.count("failed (exitcode: -9)")
    row.count("" if code == 0 and restarts else f"torchrun: exit code {code}: {launched.output[-600:]}",
              *([f"orphans {orphans}"] if orphans else []), *same)  # fmt: skip


def _survivor_under_torchrun(folder: Path, row: Row) -> None:
    launched = Launched(folder, "agent")
    launched.wait_for(lambda: lines_of(folder / "agent") >= 9)
    launched.kill_rank(1)
    killed = time.monotonic()
    code, seconds = launched.wait(), time.monotonic() - killed
    orphans = launched.family()
    row.count("" if code and seconds < ENDS_S else f"torchrun: exit code {code} in {seconds:.0f} s",
              "" if "rank : 1" in launched.output else f"torchrun: message {launched.output[-600:]!r}",
              *([f"orphans {orphans}"] if orphans else []))  # fmt: skip
