"""The built page, served once; networks asked beside it, in Chromium."""

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from flashcaps.demo.build import build
from flashcaps.demo.samples import read_samples
from flashcaps.demo.serve import address, make_server
from flashcaps.routing import ROUTING

IMAGES, LABELS = read_samples()
ALGORITHMS = tuple(ROUTING)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `flashcaps demo --build` writes."""
    folder = tmp_path_factory.mktemp("page") / "site"
    build(folder)
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a folder, served from a thread."""
    server = make_server(folder, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield address(server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture(scope="session")
def page_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the page; $DEMO_URL, if one is served already."""
    if "DEMO_URL" in os.environ:
        yield os.environ["DEMO_URL"]
        return
    with serving(request.getfixturevalue("site")) as url:
        yield url


ASK = "async ([method, ...words]) => (await import('./page/api.js')).api[method](...words)"


class Asked:
    """A page of the same origin on which nothing else runs: ("route", "demo_em", image(pixels)) asks the page's api."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def __call__(self, *words: Any) -> Any:
        return self.page.evaluate(ASK, list(words))


@pytest.fixture(scope="session")
def ask(chromium: Any, page_url: str) -> Iterator[Asked]:
    page = chromium.new_page()
    page.route("**/blank", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    page.goto(f"{page_url}blank")
    yield Asked(page)
    page.close()


def image(pixels: Tensor) -> dict[str, Any]:
    """uint8 (H, W) as the page says it."""
    height, width = pixels.shape
    return {"width": width, "height": height, "pixels": base64.b64encode(pixels.numpy().tobytes()).decode("ascii")}
