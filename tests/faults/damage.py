"""A state or weights file cut short or with flipped bits: always noticed, the one before taken, with a warning."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from flashcaps.training.checkpoint import list_states, load, load_state
from tests.faults.child import Row, damaged, differences, finished, lines_of, prepare, start


def try_all(folder: Path, full: bool) -> Row:
    row = Row("checkpoint truncated or with flipped bits")
    flips = 100 if full else 20
    prepare(folder)
    whole, killed = start(folder, "whole", "save_seconds=0"), start(folder, "killed", "save_seconds=0")
    killed.wait_for(lambda: lines_of(folder / "killed") >= 12)
    killed.kill_after(0)
    if not finished(row, whole):
        return row
    run = folder / "killed"
    newest, before = list_states(run)[:2]  # there may be a third, where a save was killed
    _each(newest, flips, row, lambda: _falls_back(run, int(before.name.split("-")[1])))
    _each(folder / "whole" / "last.safetensors", flips, row, lambda: _refused(folder / "whole" / "last.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    again = start(folder, "killed", "save_seconds=0", "--resume")
    code = again.wait()
    row.count("" if code == 0 else f"exit code {code}", "" if "is damaged" in again.output else "no warning",
              *differences(run, folder / "whole"))  # fmt: skip
    return row


def _each(path: Path, flips: int, row: Row, wrong: Callable[[], str]) -> None:
    content, kept = path.read_bytes(), path.parent.with_name(f"{path.parent.name}.kept")
    shutil.copytree(path.parent, kept)
    for what, raw in damaged(content, flips):
        path.write_bytes(raw)
        row.count(f"{path.name}, {what}: {fault}" if (fault := wrong()) else "")
        shutil.copytree(kept, path.parent, dirs_exist_ok=True)
    shutil.rmtree(kept)


def _falls_back(run: Path, expected: int) -> str:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            at = load_state(run)["at"]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    if at != expected:
        return f"state {at} loaded, expected {expected}"
    return "" if any("is damaged" in str(w.message) for w in said) else "no warning"


def _refused(path: Path) -> str:
    try:
        load(path)
    except ValueError as error:
        return "" if str(path) in str(error) else f"no path in {error}"
    return "loaded in silence"
