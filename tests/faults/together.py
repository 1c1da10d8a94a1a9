"""Two at once: a second run in a folder is refused by its lock; a file fetched twice is there once."""

import functools
import json
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
from tests.faults.child import Child, Row, differences, lines_of, prepare, start, train_arguments

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


def try_all(folder: Path, full: bool) -> Row:
    row = Row("two runs in a folder, two downloads of a file")
    prepare(folder)
    for k in range(5 if full else 1):
        _two_runs(folder, k, row)
        _two_downloads(folder, k, row)
    return row


def _two_runs(folder: Path, k: int, row: Row) -> None:
    name, alone = f"run-{k}", f"alone-{k}"
    first = start(folder, name)
    first.wait_for(lambda: lines_of(folder / name) >= 2)
    os.kill(first.process.pid, signal.SIGSTOP)  # it would be done before the others have begun
    others = [Child(train_arguments(folder, name, flag), folder / f"{name}{flag}.log")
              for flag in ("--device=cpu", "--fresh", "--resume")]  # fmt: skip
    codes = [other.wait() for other in others]
    os.kill(first.process.pid, signal.SIGCONT)
    reference = start(folder, alone)
    ends = first.wait(), reference.wait()
    wrong = [f"exit codes {codes}"] if codes != [1, 1, 1] else []
    wrong += [o.output for o in others if "is in use by another process, which holds " not in o.output]
    wrong += [f"the first one's exit codes {ends}"] if ends != (0, 0) else differences(folder / name, folder / alone)
    row.count(*wrong)


def _two_downloads(folder: Path, k: int, row: Row) -> None:
    server = Server()
    server.RequestHandlerClass, server.files["digits.gz"] = Slow, CONTENT
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    root = folder / f"root-{k}"
    patch = functools.partial(get, server.url("digits.gz"), root)
    both = [Child([], folder / f"get-{k}-{n}.log", patch, {"no_proxy": "127.0.0.1"}) for n in range(2)]
    codes = [child.wait() for child in both]
    server.shutdown()
    server.server_close()
    found = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")
    good = found == ["mnist/SHA256SUMS", "mnist/digits.gz"] and (root / "mnist" / "digits.gz").read_bytes() == CONTENT
    row.count("" if codes == [0, 0] else f"exit codes {codes}: {both[0].output} {both[1].output}",
              "" if good else f"found {json.dumps(found)}",
              "" if server.ranges == [None] else f"asked {len(server.ranges)} times")
