"""The built page in a real browser: served once, asked beside what it shows, drawn on, and it complains of no error."""

import base64
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from flashcaps.demo.build import build, read_samples
from flashcaps.demo.serve import address, make_server
from flashcaps.routing import ROUTING

IMAGES, _ = read_samples()
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
    with make_server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield address(server)
        finally:
            server.shutdown()


@pytest.fixture(scope="session")
def page_url(site: Path) -> Iterator[str]:
    """The address of the page."""
    with serving(site) as url:
        yield url


ASK = "async ([method, ...words]) => (await import('./page/api.js')).api[method](...words)"


class Asked:
    """ask("route", "demo_em", image(pixels)): what the page's api answers, beside what is shown."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def __call__(self, *words: Any) -> Any:
        return self.page.evaluate(ASK, list(words))


@pytest.fixture(scope="session")
def ask(chromium: Any, page_url: str) -> Iterator[Asked]:
    """A page of the same origin on which nothing else runs."""
    page = chromium.new_page()
    page.route("**/blank", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    page.goto(f"{page_url}blank")
    yield Asked(page)
    page.close()


def image(pixels: Tensor) -> dict[str, Any]:
    """uint8 (H, W) as the page says it."""
    height, width = pixels.shape
    return {"width": width, "height": height, "pixels": base64.b64encode(pixels.numpy().tobytes()).decode("ascii")}


DESKTOP, PHONE = (1360, 860), (390, 844)
VIEWS = ("parts", "draw", "routing", "tweak", "overlap", "compare")
PIXELS = "canvas => canvas.toDataURL()"
OPENING = "async () => (await import('./page/opening.js')).OPENING"


def winner(page: Any) -> Any:
    return page.get_by_test_id("winner")


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expected

    return expected(locator)


def shares(panel: Any) -> list[float]:
    """The bars of a view, as drawn."""
    share = "bar => bar.style.getPropertyValue('--share')"
    return [float(bar.evaluate(share)) for bar in panel.locator(".bar .fill").all()]


def lights(panel: Any) -> list[float]:
    """The brightness of the wholes, as drawn."""
    return [float(whole.get_attribute("data-light")) for whole in panel.locator(".board .whole").all()]


class Visit:
    """A page with one visitor. `complaints` holds what a good page has none of."""

    def __init__(self, browser: Any, url: str, shots: Path, *, size: tuple[int, int] = DESKTOP, **context: Any) -> None:
        self.url, self.shots = url, shots
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **context)
        self.page = self.context.new_page()
        self.ask = Asked(self.page)
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._asked)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"request to another host: {request.url}")

    def open(self, hash: str = "") -> Any:
        self.page.goto("about:blank")  # a change of the hash alone would not load the page
        self.page.goto(f"{self.url}{hash}")
        self.page.wait_for_selector("body[data-ready]")
        return self.page

    def settle(self) -> None:
        """Until every request is answered, those that wait for their turn, too."""
        for _ in range(3):
            self.page.wait_for_timeout(150)
            self.page.wait_for_function("() => !document.body.hasAttribute('data-busy')")

    def show(self, view: str) -> Any:
        self.page.get_by_role("tab", name=view.capitalize()).click()
        panel = self.page.locator(f"#view-{view}")
        panel.wait_for(state="visible")
        return panel

    def shoot(self, name: str) -> None:
        self.page.screenshot(path=str(self.shots / f"{name}.png"))

    def singles(self) -> list[dict[str, Any]]:
        """The networks of single digits."""
        return [m for m in self.ask("models")["models"] if not m["pairs"]]

    def choose(self, model: str) -> None:
        self.page.locator("#model").select_option(model)
        self.settle()

    def pick(self, sample: int) -> None:
        self.page.locator(f".sample[data-id='{sample}']").click()

    def drag(self, *points: tuple[float, float], steps: int = 1) -> None:
        """The mouse, held down from point to point."""
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        for point in points[1:]:
            self.page.mouse.move(*point, steps=steps)
        self.page.mouse.up()

    def touch(self, *points: tuple[float, float]) -> None:
        """One finger from point to point."""
        session = self.context.new_cdp_session(self.page)
        for k, (x, y) in enumerate(points):
            touched = {"type": "touchMove" if k else "touchStart", "touchPoints": [{"x": x, "y": y}]}
            session.send("Input.dispatchTouchEvent", touched)
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def draw(self, digit: str) -> None:
        """Clear the pad and draw a digit with the mouse."""
        self.page.get_by_role("button", name="Clear").click()
        box = self.page.locator(".pad").bounding_box()
        for stroke in STROKES[digit]:
            self.drag(*((box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke))


Visits = Callable[..., tuple[Visit, Any]]


@pytest.fixture
def visit(chromium: Any, page_url: str, tmp_path: Path) -> Iterator[Visits]:
    """visit("#v=draw", size=PHONE): a visitor and the settled page, which had nothing to complain of: no error, no
    warning, no request to another host."""
    made: list[Visit] = []
    shots = Path(os.environ.get("SCREENSHOTS", tmp_path))
    shots.mkdir(parents=True, exist_ok=True)

    def make(hash: str = "", **context: Any) -> tuple[Visit, Any]:
        made.append(Visit(chromium, page_url, shots, **context))
        page = made[-1].open(hash)
        made[-1].settle()
        return made[-1], page

    yield make
    for one in made:
        one.context.close()
        assert one.complaints == []


Points = list[tuple[float, float]]


def arc(cx: float, cy: float, rx: float, ry: float, start: float, end: float, count: int = 24) -> Points:
    """Points of an ellipse; degrees, 0 to the right, clockwise as the screen's y goes down."""
    angles = [math.radians(start + (end - start) * t / (count - 1)) for t in range(count)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


def line(*points: tuple[float, float], count: int = 10) -> Points:
    found = [points[0]]
    for (ax, ay), (bx, by) in pairwise(points):
        found += [(ax + (bx - ax) * t / count, ay + (by - ay) * t / count) for t in range(1, count + 1)]
    return found


STROKES = {
    "0": [arc(0.5, 0.5, 0.2, 0.3, -90, 270, 40)],
    "1": [line((0.52, 0.2), (0.48, 0.8))],
    "2": [arc(0.48, 0.35, 0.17, 0.15, -170, 30) + line((0.62, 0.45), (0.32, 0.78)) + line((0.32, 0.78), (0.7, 0.78))],
    "3": [arc(0.47, 0.35, 0.17, 0.15, -150, 90) + arc(0.47, 0.65, 0.19, 0.15, -90, 150)],
    "4": [line((0.38, 0.2), (0.3, 0.52), (0.68, 0.52)), line((0.62, 0.2), (0.58, 0.82))],
    "5": [line((0.66, 0.22), (0.42, 0.22), (0.38, 0.47)) + arc(0.48, 0.62, 0.18, 0.17, -115, 150)],
    "6": [arc(0.72, 0.5, 0.38, 0.34, 235, 165) + arc(0.5, 0.64, 0.155, 0.15, 175, -185, 34)],
    "7": [line((0.3, 0.24), (0.68, 0.24), (0.46, 0.8))],
    "8": [arc(0.5, 0.36, 0.13, 0.14, 90, -270, 34) + arc(0.5, 0.65, 0.16, 0.15, -90, 270, 34)],
    "9": [arc(0.5, 0.37, 0.15, 0.15, 0, -360, 34) + line((0.65, 0.37), (0.6, 0.8))],
    "heart": [[(0.5 + 0.02 * 16 * math.sin(t) ** 3,
                0.48 - 0.02 * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)))
               for t in (2 * math.pi * n / 60 for n in range(61))]],
}  # fmt: skip
