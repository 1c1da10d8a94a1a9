"""One process at a time: a locked file that says who holds it. The system lets go of it when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path


class InUse(Exception):
    """Another process holds the lock; the text says which."""


class Lock:
    """The lock at `path`, from take() to release(); whatever ends the process releases it, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: int | None = None

    def take(self, wait: bool = False) -> None:
        """Now or never (InUse says who has it), or with `wait` as soon as it is free."""
        while self.file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:
                continue  # whoever held it removed the empty folder meanwhile
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                holder = _holder(file)
                os.close(file)
                raise InUse(holder) from None
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK):
                    os.close(file)
                    raise  # a file system without locks has none to offer, and is used as it is
            if _is_at(file, self.path):
                self.file = file
            else:  # whoever held it removed the file meanwhile: this lock is nobody's
                os.close(file)
        me = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(OSError):  # a full disk: held all the same, by somebody unknown
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, json.dumps(me).encode(), 0)

    def release(self) -> None:
        if self.file is not None:
            self.path.unlink(missing_ok=True)
            os.close(self.file)
            self.file = None

    def __enter__(self) -> Lock:
        self.take(wait=True)
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(file: int) -> str:
    try:
        who = json.loads(os.pread(file, 1000, 0))
        return f"process {who['pid']} on {who['host']} since {who['started']}"
    except (ValueError, KeyError, TypeError):  # it has the lock and has not written yet
        return "another process"
