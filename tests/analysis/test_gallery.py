"""The gallery has every figure, the command that makes it, and pictures that exist and stay small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from flashcaps.analysis import FIGURES

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "gallery.md").read_text()
FROM_RESULTS = {"ablation", "diverse"}  # drawn once those runs are measured


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_its_command_and_picture(name):
    part = TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert re.search(rf"^    flashcaps figures \S+ {name}\b", part, re.M)
    pictures = re.findall(r"\]\((images/gallery/\S+)\)", part)
    assert pictures or name in FROM_RESULTS
    for picture in pictures:
        assert min(Image.open(DOCS / picture).size) > 100


def test_pictures_are_small_and_all_used():
    files = list((DOCS / "images" / "gallery").iterdir())
    assert sum(f.stat().st_size for f in files) < 1_500_000
    assert all(f"images/gallery/{f.name}" in TEXT for f in files)
