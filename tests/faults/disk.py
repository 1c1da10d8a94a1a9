"""The disk is full while something is written: what was saved before loads, and with room again the run goes on."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import resource
import shutil
import signal
from pathlib import Path

from flashcaps.training import loop as training
from flashcaps.training.checkpoint import load_state
from tests.faults.child import Row, differences, finished, lines_of, prepare, start

MESSAGE = re.compile(r"error: .*/(run|disk)\S*: no room for [\d,]+ bytes \(.*[\d,]+ bytes free there\)")
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000


def limit_files(size: int) -> None:
    """No file of this process may grow beyond `size`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def small_disk(folder: Path, spare: int) -> None:
    """The folder becomes a file system of its own with what is in it and `spare` bytes more; its end is copied out."""
    libc = ctypes.CDLL(None, use_errno=True)
    inside, held = folder.with_name(f"{folder.name}.held"), _pages(folder)
    shutil.move(folder, inside)
    folder.mkdir()
    size = f"size={held + spare // 4096 * 4096}".encode()
    place, user, group = os.fsencode(folder), os.getuid(), os.getgid()
    alone = libc.unshare(NEW_USER | NEW_MOUNTS) == 0 and _same_user(user, group)
    if not alone or libc.mount(b"none", place, b"tmpfs", 0, size):
        shutil.rmtree(folder)
        shutil.move(inside, folder)
        os._exit(99)  # not allowed here
    shutil.copytree(inside, folder, dirs_exist_ok=True)
    train_once = training.train_once

    def copied_out(*arguments: object) -> object:
        try:
            return train_once(*arguments)  # type: ignore[arg-type]
        finally:
            shutil.rmtree(inside)
            shutil.copytree(folder, inside)

    training.train_once = copied_out  # type: ignore[assignment]


def _same_user(user: int, group: int) -> bool:
    """In the new name space, which starts without any."""
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    try:
        for name, text in maps.items():
            Path(f"/proc/self/{name}").write_text(text)
    except OSError:
        return False
    return True


def _pages(folder: Path) -> int:
    """Bytes a tmpfs takes for these files, which it stores in pages."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def try_all(folder: Path, full: bool) -> Row:
    row = Row("disk full while saving")
    prepare(folder)
    whole = start(folder, "whole")
    if not finished(row, whole):
        return row
    begun = _stopped(folder, row)
    size = next(begun.glob("state-*.pt")).stat().st_size
    limits = {"1 KiB": 1024, "half a state": size // 2, "one byte too few": size - 1}
    for k, (name, limit) in enumerate(limits.items() if full else list(limits.items())[1:]):
        _one(folder, begun, f"run-{k}", functools.partial(limit_files, limit), name, row)
    for k, spare in enumerate((0, size // 2, size + 4096) if full else (size // 2,)):
        _one(folder, begun, f"disk-{k}", functools.partial(small_disk, folder / f"disk-{k}", spare), "tmpfs", row)
    return row


def _stopped(folder: Path, row: Row) -> Path:
    """A run that was asked to stop after a few steps, to be copied and gone on with."""
    child = start(folder, "begun", "epochs=3")
    child.wait_for(lambda: lines_of(folder / "begun") >= 6)
    assert child.process.pid is not None
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
    held = run.with_name(f"{name}.held")
    if code == 99:
        row.note = "no tmpfs may be mounted here: file size limits alone"
        return
    if held.is_dir():
        shutil.rmtree(run)
        shutil.move(held, run)
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
