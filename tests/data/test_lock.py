"""One process at a time, and whoever is refused learns who is there."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from flashcaps.data.lock import InUse, Lock


def test_the_second_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "a.lock"), Lock(tmp_path / "a.lock")
    first.take()
    with pytest.raises(InUse, match=rf"process {os.getpid()} on {socket.gethostname()} since \d{{4}}-"):
        second.take()
    first.release()
    second.take()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_left_by_a_dead_process_is_free(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text('{"pid": 1, "host": "gone", "started": "long ago"}')
    lock = Lock(tmp_path / "a.lock")
    lock.take()
    assert str(os.getpid()) in (tmp_path / "a.lock").read_text()
    assert "long ago" not in (tmp_path / "a.lock").read_text()
    lock.release()


def test_a_holder_that_has_not_written_yet_is_another_process(tmp_path: Path) -> None:
    first = Lock(tmp_path / "a.lock")
    first.take()
    (tmp_path / "a.lock").write_text("")
    with pytest.raises(InUse, match="another process"):
        Lock(tmp_path / "a.lock").take()
    first.release()


def test_those_who_wait_come_one_at_a_time(tmp_path: Path) -> None:
    inside, most, done = 0, 0, []

    def work(name: int) -> None:
        nonlocal inside, most
        with Lock(tmp_path / "folder" / "a.lock"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1
            done.append(name)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, sorted(done)) == (1, list(range(6)))


def test_release_without_take_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text("somebody's")
    Lock(tmp_path / "a.lock").release()
    assert (tmp_path / "a.lock").read_text() == "somebody's"
