"""kill -9 at random moments, and at every stage of a save: the run goes on by itself and ends the same, bit for bit.

Weights, averaged weights, optimiser, random state, metric log and files are compared with those of a run left alone.
"""

import functools
import io
import os
import pathlib
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.child import Child, assert_same, prepare, start

STAGES = ("open", "half", "fsync", "replace", "replaced", "unlink")
OVERRIDES = ("epochs=6", "save_seconds=0")


class _Halves(io.FileIO):
    """A file that is written in two halves, with `between` called in between."""

    between: Callable[[], None]

    def write(self, content: Any) -> int:
        half = super().write(content[: len(content) // 2])
        self.between()
        return half + super().write(content[half:])


def die_at(stage: str, nth: int) -> None:
    """Be killed at the n-th time that a stage of writing a file is reached."""
    reached = 0

    def at(name: str) -> None:
        nonlocal reached
        reached += name == stage
        if reached == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def with_notice(function: Any, before: str, after: str = "") -> Any:
        @functools.wraps(function)
        def noticed(*arguments: Any, **options: Any) -> Any:
            at(before)
            result = function(*arguments, **options)
            at(after)
            return result

        return noticed

    real_open = pathlib.Path.open

    def opened(path: Path, *arguments: Any, **options: Any) -> Any:
        if not path.name.endswith(".part"):
            return real_open(path, *arguments, **options)
        file = _Halves(path, "w")
        file.between = functools.partial(at, "half")
        at("open")
        return file

    pathlib.Path.open = opened  # type: ignore[assignment]
    pathlib.Path.unlink = with_notice(pathlib.Path.unlink, "unlink")  # type: ignore[method-assign]
    os.fsync = with_notice(os.fsync, "fsync")
    os.replace = with_notice(os.replace, "replace", "replaced")


def try_all(folder: Path, full: bool) -> int:
    kills, runs = (50, 5) if full else (4, 1)
    prepare(folder)
    begun = time.monotonic()
    start(folder, "whole", *OVERRIDES).ends_with(0)
    seconds = time.monotonic() - begun
    draw = random.Random(0)
    for k in range(runs):
        _one_run(folder, f"parts-{k}", kills // runs, seconds, draw)
    return kills


def _one_run(folder: Path, name: str, kills: int, seconds: float, draw: random.Random) -> None:
    """Killed `kills` times, started again each time by the same command, as torchrun or Slurm would."""
    done = 0
    for attempt in range(20 * kills):
        if done == kills:
            break
        if (done + attempt) % 2:  # every second one in a save
            patch = functools.partial(die_at, draw.choice(STAGES), draw.randint(1, 40))
            killed = _restart(folder, name, attempt, patch).wait() == -signal.SIGKILL
        else:
            killed = _restart(folder, name, attempt).kill_after(draw.uniform(0, 0.5 * seconds))
        done += killed
        if not killed and (folder / name / "result.json").is_file():
            (folder / name / "result.json").unlink()  # it ended before it could be killed: from the start again
    assert done == kills, f"{done} of {kills} kills"
    _restart(folder, name, 1).ends_with(0)
    assert_same(folder / name, folder / "whole")


def _restart(folder: Path, name: str, attempt: int, patch: Any = None) -> Child:
    return start(folder, name, *OVERRIDES, patch=patch, TORCHELASTIC_RESTART_COUNT=str(attempt))
