"""A public name, signature or default that changes is announced: tests/surface.txt says what they are."""

import difflib
import inspect

import flashcaps

from .surface import FILE, describe, surface


def test_the_public_surface_is_what_was_announced() -> None:
    """Meant to change? `python -m tests.surface`, and a line in CHANGELOG.md."""
    before, now = FILE.read_text(encoding="utf-8"), surface()
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "announced", "is", lineterm="", n=0)
    changes = "\n".join(lines)
    assert not changes, f"the public surface changed; `python -m tests.surface` renews tests/surface.txt\n{changes}"


def test_a_changed_default_is_seen() -> None:
    def before(x: int, *, size: int = 3) -> int:
        return x * size

    def after(x: int, *, size: int = 4) -> int:
        return x * size

    assert describe("f", before) == ["f(x: int, *, size: int = 3) -> int"]
    assert describe("f", before) != describe("f", after)


def test_every_public_name_and_its_defaults_are_in_it() -> None:
    text = FILE.read_text(encoding="utf-8")
    for name in (*flashcaps.__all__, *flashcaps.functional.__all__):
        assert name in text, name
    for parameter in inspect.signature(flashcaps.DenseCapsules).parameters.values():
        assert parameter.name in text
    assert "iterations: int = 3" in text
    assert "command train" in text
