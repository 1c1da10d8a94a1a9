"""Code in README and CONTRIBUTING runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flashcaps.routing import ROUTING

ROOT = Path(__file__).parents[2]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_block_runs_in_order(name, capsys):
    known = dict(ROUTING)
    namespace: dict = {"__name__": "docs"}
    try:
        for block in blocks(name):
            exec(compile(block, name, "exec", dont_inherit=True), namespace)
    finally:
        ROUTING.clear()
        ROUTING.update(known)
    assert "torch.Size([" in capsys.readouterr().out


def test_readme_example_is_ten_lines_or_so():
    lines = [x for x in blocks("README.md")[0].splitlines() if x.strip()]
    assert len(lines) <= 11


def test_readme_shows_routing_on_its_first_screen():
    first = (ROOT / "README.md").read_text().splitlines()[:40]
    pictures = [re.search(r"\((docs/images/\S+)\)", x) for x in first]
    found = [m.group(1) for m in pictures if m]
    assert found
    assert all((ROOT / f).stat().st_size > 10_000 for f in found)
    assert any("pip install" in x for x in first)
    assert any(x.startswith("```python") for x in first)
