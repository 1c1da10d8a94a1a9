"""The models of the package, opened once; a client of the application, a server in a thread, and `flashcaps demo`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.request import urlopen

from starlette.testclient import TestClient

from flashcaps.demo.app import create_app
from flashcaps.demo.explainer import Explainer
from flashcaps.demo.inputs import write_pixels
from flashcaps.demo.samples import read_samples
from flashcaps.demo.serve import open_models, take_port
from flashcaps.nn.trace import keeps_couplings
from flashcaps.routing import ROUTING

IMAGES, LABELS = read_samples()
ALGORITHMS = tuple(ROUTING)
ITERATIVE = tuple(name for name in ROUTING if not keeps_couplings(ROUTING[name]()))


@cache
def models() -> dict[str, Explainer]:
    return {x.name: x for x in open_models()}


@contextmanager
def client(**options: Any) -> Iterator[TestClient]:
    app = create_app(list(models().values()), **options)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as opened:
        yield opened


def image(pixels: Any) -> dict[str, Any]:
    """uint8 (H, W) as a request says it."""
    return {"width": pixels.shape[1], "height": pixels.shape[0], "pixels": write_pixels(pixels)}


@contextmanager
def server() -> Iterator[str]:
    """A real server on a port of its own, in a thread; its address."""
    import uvicorn

    place = take_port("127.0.0.1", 0)
    config = uvicorn.Config(create_app(list(models().values())), log_level="error", access_log=False)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(timeout=20)


def start_demo() -> tuple[str, subprocess.Popen[str]]:
    """Its address, on a free port, and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flashcaps", "demo", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"http://127.0.0.1:{port}/", process


def wait_for(url: str, process: subprocess.Popen[str]) -> Any:
    """What /health says, once it answers."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"flashcaps demo ended: {process.communicate()[0]}")
        try:
            with urlopen(f"{url}health", timeout=5) as answer:
                return json.load(answer)
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("flashcaps demo did not answer within a minute")
