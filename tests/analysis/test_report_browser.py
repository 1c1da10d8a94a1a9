"""The report in a real browser: every picture is drawn, nothing is complained of, nothing is asked of the network."""

from pathlib import Path
from typing import Any

import pytest

from flashcaps.analysis import compare, write_figures
from tests.analysis.conftest import small_run
from tests.demo.page_server import Visit

pytestmark = pytest.mark.browser
NAMES = ["architecture", "reconstructions", "margin", "parse_tree", "segmentation"]


def pictures_of(browser: Any, path: Path, scheme: str) -> list[dict[str, Any]]:
    """What each picture of a page that complains of nothing came to."""
    one = Visit(browser, path.as_uri(), path.parent, size=(900, 800), color_scheme=scheme)
    one.page.goto(one.url)
    one.page.wait_for_load_state("networkidle")
    assert one.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    found = one.page.evaluate(
        "[...document.images].map(i => ({alt: i.alt, width: i.naturalWidth, dark: i.currentSrc !== i.src}))"
    )
    one.context.close()
    assert one.complaints == []
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_opens_without_a_network(chromium: Any, tmp_path: Path, scheme: str) -> None:
    pictures = pictures_of(chromium, write_figures(small_run(8), tmp_path, NAMES), scheme)
    assert len(pictures) == 4  # segmentation does not apply, and says so in words
    assert all(picture["width"] > 300 and picture["alt"] for picture in pictures)
    assert all(picture["dark"] == (scheme == "dark") for picture in pictures)


def test_two_checkpoints_side_by_side(chromium: Any, tmp_path: Path) -> None:
    path = compare(small_run(8), small_run(8, decoder=False), tmp_path, ["margin", "reconstructions"])
    assert len(pictures_of(chromium, path, "light")) == 3
