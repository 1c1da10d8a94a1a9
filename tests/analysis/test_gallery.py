"""The gallery has every figure, the command that makes it, and pictures that exist and stay small."""

import re
import shlex
from pathlib import Path

from PIL import Image

from docs import gallery
from flashcaps.analysis import FIGURES
from flashcaps.models.shipped import shipped_files
from flashcaps.training.recipe import read_recipe

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "gallery.md").read_text()


def test_pictures_are_small_and_all_used():
    files = list((DOCS / "images" / "gallery").iterdir())
    assert sum(f.stat().st_size for f in files) < 1_500_000
    assert all(f"images/gallery/{f.name}" in TEXT for f in files)


def test_the_page_is_the_scripts():
    parts = gallery.parts_of_page(TEXT)
    assert list(parts) == list(FIGURES)
    assert gallery.page(parts) == TEXT
    for name, part in parts.items():
        assert re.match(rf"flashcaps figures \S+ {name}\b", gallery.command_of(name))
        assert f"    {gallery.command_of(name)}\n" in part
        pictures = re.findall(r"\]\((images/gallery/\S+)\)", part)
        assert pictures
        assert all(min(Image.open(DOCS / picture).size) > 100 for picture in pictures)


def test_a_part_is_drawn_or_says_why_not(run, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "DOCS", tmp_path)
    monkeypatch.setattr(gallery, "IMAGES", tmp_path / "images")
    part = gallery.part_of("margin", run)
    assert "](images/margin.png)" in part
    assert min(Image.open(tmp_path / "images" / "margin.png").size) > 100
    assert "Not drawn yet: images with two digits" in gallery.part_of("segmentation", run)
    moving = gallery.part_of("animation", run)
    assert "](images/animation.gif)" in moving
    assert Image.open(tmp_path / "images" / "animation.gif").n_frames > 3


def test_models_are_trained_by_commands_that_exist():
    assert gallery.needed(["cost"]) == ["tiny-0"]
    assert gallery.needed(["margin", "segmentation"]) == []
    assert gallery.DRAWN_OF.keys() <= FIGURES.keys()
    assert set(gallery.DRAWN_OF.values()) <= gallery.MODELS.keys() | shipped_files().keys()
    assert gallery.place_of("cost") == "runs/tiny-0"
    assert gallery.place_of("margin") == "capsnet_mnist"
    assert gallery.needed(["sparsity", "credit"]) == ["tiny-0", "tiny-r1", "tiny-l1", "tiny-l2-norec", "sentences"]
    for words in gallery.MODELS.values():
        name, *overrides = shlex.split(words)
        read_recipe(name, overrides)
