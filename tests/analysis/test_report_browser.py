"""The report in a real browser: every picture is drawn, nothing is complained of, nothing is asked of the network."""

from pathlib import Path
from typing import Any

import pytest

from flashcaps.analysis import compare
from tests.analysis.conftest import small_run
from tests.demo.page_server import Visit

pytestmark = pytest.mark.browser
NAMES = ["architecture", "reconstructions", "margin", "parse_tree", "segmentation"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_of_two_checkpoints_opens_without_a_network(chromium: Any, tmp_path: Path, scheme: str) -> None:
    path = compare(small_run(8), small_run(8, decoder=False), tmp_path, NAMES)
    one = Visit(chromium, path.as_uri(), path.parent, size=(900, 800), color_scheme=scheme)
    one.page.goto(one.url)
    one.page.wait_for_load_state("networkidle")
    assert one.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    pictures = one.page.evaluate(
        "[...document.images].map(i => ({alt: i.alt, width: i.naturalWidth, dark: i.currentSrc !== i.src}))"
    )
    one.context.close()
    assert one.complaints == []
    assert len(pictures) == 4 + 3  # segmentation does not apply, nor reconstructions to the second, and both say so
    assert all(picture["width"] > 300 and picture["alt"] for picture in pictures)
    assert all(picture["dark"] == (scheme == "dark") for picture in pictures)
