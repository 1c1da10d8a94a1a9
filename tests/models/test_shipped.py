"""Weights that come along: found by name, small, as good as their cards say."""

import json
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.demo.build import DEMO
from flashcaps.models.shipped import FOLDER, shipped_files
from flashcaps.training.recipe import read_recipe

LIMIT = 6_000_000  # bytes of the models the explainer needs, together
ALL = 24_000_000  # bytes of all that come along


@pytest.mark.parametrize("name", DEMO)
def test_the_explainers_models_come_along(name: str) -> None:
    model: Any = flashcaps.load(name)
    config, recipe = model.config, read_recipe(name)
    assert config["recipe"]["name"] == name
    assert recipe.model.name == model.name
    assert json.loads(json.dumps(recipe.model.overrides)) == model.overrides
    assert model.decoder is not None
    result = config["result"]
    assert result["examples"] == result["stored"]["examples"] == 10_000
    assert result["commit"]
    assert result["stored"]["interval"][1] < (15 if name == "demo_pairs" else 1)
    card = (FOLDER / f"{name}.md").read_text()
    assert f"{result['value']:.2f} %" in card
    assert f"{result['stored']['value']:.2f} %" in card
    assert model(torch.rand(2, *model.image)).scores.isfinite().all()


def test_they_are_small_together_and_their_cards_name_them() -> None:
    files = shipped_files()
    assert sum(files[name].stat().st_size for name in DEMO) <= LIMIT
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < ALL
    for name, path in files.items():
        assert sorted(p.name for p in FOLDER.glob(f"{name}.*")) == sorted([f"{name}.md", path.name])
        assert f"File: `{path.name}`, {path.stat().st_size:,} bytes" in (FOLDER / f"{name}.md").read_text()
