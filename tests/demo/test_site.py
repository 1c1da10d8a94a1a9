"""The built folder behind a static host, under a sub-path, with nothing else to reach."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from flashcaps.demo.build import DEMO
from tests.demo.page_server import VIEWS, Visit, serving

pytestmark = pytest.mark.browser


def test_the_folder_is_all_the_page_needs(chromium: Any, site: Path, tmp_path: Path) -> None:
    """At most 8 MB, of which at most 1.5 MB before the first answer; every view works, and nothing complains."""
    shutil.copytree(site, tmp_path / "host" / "caps" / "page")
    assert sum(path.stat().st_size for path in site.rglob("*")) <= 8_000_000
    with serving(tmp_path / "host") as host:
        one = Visit(chromium, f"{host}caps/page/", tmp_path)
        loaded: dict[str, int] = {}
        one.context.route(re.compile(f"^(?!{re.escape(one.url)})"), lambda route: route.abort())
        one.context.on("response", lambda response: loaded.update({response.url: len(response.body())}))
        page = one.open("#v=draw")
        page.wait_for_function("() => document.querySelector('[data-testid=winner]')?.textContent.trim()")
        one.settle()
        assert sum(loaded.values()) <= 1_500_000, loaded
        assert sum(url.endswith(".caps") for url in loaded) == 1
        for view in VIEWS:
            one.show(view)
            one.settle()
        assert {Path(url).stem for url in loaded if url.endswith(".caps")} == set(DEMO)
        one.context.close()
        assert one.complaints == []


def test_a_network_that_cannot_be_loaded_is_told_on_the_page(chromium: Any, site: Path, tmp_path: Path) -> None:
    with serving(site) as url:
        one = Visit(chromium, url, tmp_path)
        one.context.route("**/*.caps", lambda route: route.abort())
        page = one.open("#v=draw")
        page.wait_for_function("() => document.body.textContent.includes('caps cannot be loaded')")
        one.context.unroute("**/*.caps")
        page.locator(".sample").first.click()  # the next picture asks again
        page.wait_for_function("() => document.querySelector('[data-testid=winner]')?.textContent.trim()")
        one.context.close()
