"""A public name, signature or default that changes is announced: tests/surface.txt says what they are."""

import difflib

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
