"""Every Python block of the guides runs as printed, in order, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = ("quickstart", "algorithms", "own_data", "own_tensors", "deployment")


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / f"{name}.md").read_text(), re.S | re.M)


@pytest.mark.parametrize("name", GUIDES)
def test_every_block_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(name)
    assert len(found) >= 3
    namespace: dict[str, object] = {"__name__": name}
    for k, block in enumerate(found):
        exec(compile(block, f"{name}.md, block {k + 1}", "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("name", GUIDES)
def test_links_lead_somewhere(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (DOCS / target).exists(), target


@pytest.mark.parametrize("name", GUIDES)
def test_lines_fit_a_screen(name: str) -> None:
    lines = (DOCS / f"{name}.md").read_text().splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith("|")]
