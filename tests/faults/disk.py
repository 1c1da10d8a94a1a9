"""No room for a file while it is written: what was saved before loads, and with room again the run goes on."""

import functools
import json
import os
import re
import resource
import shutil
import signal
from pathlib import Path

from flashcaps.training.checkpoint import load_state
from tests.faults.child import Row, differences, finished, lines_of, prepare, start

MESSAGE = re.compile(r"error: .*/run\S*: no room for [\d,]+ bytes \(.*[\d,]+ bytes free there\)")


def limit_files(size: int) -> None:
    """No file of this process may grow beyond `size`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def try_all(folder: Path, full: bool) -> Row:
    row = Row("no room while saving")
    prepare(folder)
    whole = start(folder, "whole")
    if not finished(row, whole):
        return row
    begun = _stopped(folder, row)
    size = next(begun.glob("state-*.pt")).stat().st_size
    limits = {"1 KiB": 1024, "half a state": size // 2, "one byte too few": size - 1}
    for k, (name, limit) in enumerate(limits.items() if full else list(limits.items())[1:]):
        _one(folder, begun, f"run-{k}", functools.partial(limit_files, limit), name, row)
    return row


def _stopped(folder: Path, row: Row) -> Path:
    """A run that was asked to stop after a few steps, to be copied and gone on with."""
    child = start(folder, "begun", "epochs=3")
    child.wait_for(lambda: lines_of(folder / "begun") >= 6)
    os.kill(child.process.pid, signal.SIGTERM)
    code = child.wait()
    row.count("" if code == 143 else f"SIGTERM: exit code {code}, expected 143: {child.output[-300:]}")
    return folder / "begun"


def _one(folder: Path, begun: Path, name: str, patch: functools.partial[None], what: str, row: Row) -> None:
    run = folder / name
    shutil.copytree(begun, run)
    before = load_state(run)["at"]
    child = start(folder, name, "save_seconds=0", "--resume", patch=patch)
    code = child.wait()
    wrong = [] if code == 1 else [f"{what}: exit code {code}"]
    wrong += [] if MESSAGE.search(child.output) else [f"{what}: message {child.output[-300:]!r}"]
    wrong += [f"{what}: {p.name} is left" for p in run.glob(".*part")]
    try:
        wrong += [] if load_state(run)["at"] >= before else [f"{what}: an older state than before"]
        json.loads((run / "config.json").read_text())
    except (OSError, ValueError) as error:
        wrong.append(f"{what}: {error}")
    again = start(folder, name, "--resume")
    wrong += [f"{what}: {w}" for w in (differences(run, folder / "whole") if again.wait() == 0 else [again.output])]
    row.count(*wrong)
