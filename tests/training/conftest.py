"""Runs in these tests draw no pictures, unless a test asks for the fixture `pictures`."""

from __future__ import annotations

import pytest

from flashcaps.training import loop


@pytest.fixture
def pictures() -> None:
    """This test wants the pictures of its run."""


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(loop, "draw_curve", lambda *_: "")
        monkeypatch.setattr(loop, "draw_reconstructions", lambda *_: None)
