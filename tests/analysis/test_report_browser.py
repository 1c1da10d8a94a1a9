"""The report in a real browser: every picture is drawn, nothing is complained of, nothing is asked of the network."""

from pathlib import Path
from typing import Any

import pytest

from flashcaps.analysis import compare, write_figures
from tests.analysis.conftest import small_run

pytestmark = pytest.mark.browser
NAMES = ["architecture", "reconstructions", "margin", "parse_tree", "segmentation"]


def visit(browser: Any, path: Path, scheme: str) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """(complaints, requests beyond the file, what each picture came to)."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 900, "height": 800})
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    pictures = page.evaluate(
        "[...document.images].map(i => ({alt: i.alt, width: i.naturalWidth, dark: i.currentSrc !== i.src}))"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    context.close()
    return complaints, [url for url in requests if not url.startswith(("data:", path.as_uri()))], pictures


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_opens_without_a_network(chromium: Any, tmp_path: Path, scheme: str) -> None:
    path = write_figures(small_run(8), tmp_path, NAMES)
    complaints, requests, pictures = visit(chromium, path, scheme)
    assert complaints == []
    assert requests == []
    assert len(pictures) == 4  # segmentation does not apply, and says so in words
    assert all(picture["width"] > 300 and picture["alt"] for picture in pictures)
    assert all(picture["dark"] == (scheme == "dark") for picture in pictures)


def test_two_checkpoints_side_by_side(chromium: Any, tmp_path: Path) -> None:
    path = compare(small_run(8), small_run(8, decoder=False), tmp_path, ["margin", "reconstructions"])
    complaints, requests, pictures = visit(chromium, path, "light")
    assert complaints == requests == []
    assert len(pictures) == 3
