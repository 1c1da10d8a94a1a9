"""Two at once: a second run in a folder is refused by its lock; a file fetched twice is there once."""

import functools
import os
import random
import signal
import threading
import time
from pathlib import Path

from flashcaps.data.download import fetch
from flashcaps.data.files import Remote
from flashcaps.data.mnist import MNIST
from tests.data.test_download import Handler, Server, checksum
from tests.faults.child import Child, assert_same, metrics, prepare, start, train_arguments

CONTENT = random.Random(0).randbytes(400_000)


class Slow(Handler):
    """Lets whoever asks wait, so that others come meanwhile."""

    def do_GET(self) -> None:
        time.sleep(0.5)
        super().do_GET()


def get(url: str, root: Path) -> None:
    """Fetch MNIST, which is one file there."""
    MNIST.files = (Remote("digits.gz", (url,), len(CONTENT), checksum(CONTENT)),)
    fetch("mnist", root)


def try_all(folder: Path, full: bool) -> int:
    prepare(folder)
    times = 5 if full else 1
    for k in range(times):
        _two_runs(folder, k)
        _two_downloads(folder, k)
    return 2 * times


def _two_runs(folder: Path, k: int) -> None:
    name, alone = f"run-{k}", f"alone-{k}"
    first = start(folder, name)
    first.wait_for(lambda: len(metrics(folder / name)) >= 2)
    os.kill(first.process.pid, signal.SIGSTOP)  # it would be done before the others have begun
    others = [Child(train_arguments(folder, name, flag), folder / f"{name}{flag}.log")
              for flag in ("--device=cpu", "--fresh", "--resume")]  # fmt: skip
    codes = [other.wait() for other in others]
    os.kill(first.process.pid, signal.SIGCONT)
    for child in (start(folder, alone), first):
        child.ends_with(0)
    assert codes == [1, 1, 1], codes
    for other in others:
        assert "is in use by another process, which holds " in other.output, other.output
    assert_same(folder / name, folder / alone)


def _two_downloads(folder: Path, k: int) -> None:
    server = Server()
    server.RequestHandlerClass, server.files["digits.gz"] = Slow, CONTENT
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    root = folder / f"root-{k}"
    patch = functools.partial(get, server.url("digits.gz"), root)
    both = [Child([], folder / f"get-{k}-{n}.log", patch, {"no_proxy": "127.0.0.1"}) for n in range(2)]
    for child in both:
        child.ends_with(0)
    server.shutdown()
    server.server_close()
    found = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")
    assert found == ["mnist/SHA256SUMS", "mnist/digits.gz"], found
    assert (root / "mnist" / "digits.gz").read_bytes() == CONTENT
    assert server.ranges == [None], f"asked {len(server.ranges)} times"
