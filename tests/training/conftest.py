"""Runs in these tests draw no pictures, unless a test asks for the fixture `pictures`."""

from collections.abc import Iterator

import pytest

from flashcaps.training import loader, loop, plots

from ..fake_data import fake_load_data


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_pictures", lambda *_: None)
        yield


@pytest.fixture
def fake_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of any name are made up."""
    monkeypatch.setattr(loader, "load_data", fake_load_data)


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test wants the pictures of its run."""
    monkeypatch.setattr(loop, "draw_pictures", plots.draw_pictures)
