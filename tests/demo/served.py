"""The models that come along, opened once, and a client of the application over them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from starlette.testclient import TestClient

from flashcaps.demo.app import create_app
from flashcaps.demo.explainer import Explainer
from flashcaps.demo.inputs import write_pixels
from flashcaps.demo.samples import read_samples
from flashcaps.demo.serve import open_models, take_port

IMAGES, LABELS = read_samples()
ITERATIVE = ("dynamic", "em", "attention", "heinsen")
ALGORITHMS = (*ITERATIVE, "discriminative")


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
