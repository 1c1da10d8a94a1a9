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
from tests.faults.child import assert_same, metrics, prepare, start

MESSAGE = re.compile(r"error: .*/run\S*: no room for [\d,]+ bytes \(.*[\d,]+ bytes free there\)")


def limit_files(size: int) -> None:
    """No file of this process may grow beyond `size`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def try_all(folder: Path, full: bool) -> int:
    prepare(folder)
    start(folder, "whole").ends_with(0)
    begun = start(folder, "begun", "epochs=3")  # to be stopped after a few steps, copied and gone on with
    begun.wait_for(lambda: len(metrics(folder / "begun")) >= 6)
    os.kill(begun.process.pid, signal.SIGTERM)
    begun.ends_with(143)
    size = next((folder / "begun").glob("state-*.pt")).stat().st_size
    limits = [1024, size // 2, size - 1] if full else [size // 2, size - 1]
    for limit in limits:
        _no_room(folder, limit)
    return len(limits)


def _no_room(folder: Path, limit: int) -> None:
    name = f"run-{limit}"
    run = shutil.copytree(folder / "begun", folder / name)
    before = load_state(run)["at"]
    child = start(folder, name, "save_seconds=0", "--resume", patch=functools.partial(limit_files, limit))
    child.ends_with(1)
    assert MESSAGE.search(child.output), child.output
    assert not list(run.glob(".*part"))
    assert load_state(run)["at"] >= before
    json.loads((run / "config.json").read_text())
    start(folder, name, "--resume").ends_with(0)
    assert_same(run, folder / "whole")
