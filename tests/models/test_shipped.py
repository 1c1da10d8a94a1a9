"""Weights that come along: found by name, small, as good as their cards say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.demo.build import DEMO
from flashcaps.models.shipped import FOLDER, shipped_files
from flashcaps.models.stored import find_weights, read_weights
from flashcaps.training.recipe import make_recipe, read_recipe

LIMIT = 6_000_000  # bytes of the models the explainer needs, together
ALL = 24_000_000  # bytes of all that come along


SMALL = ("small_fashion", "small_svhn")
WORST = {"demo_pairs": 15, **dict.fromkeys(SMALL, 12)}  # percent wrong; 1 of all others


@pytest.mark.parametrize("name", [*DEMO, *SMALL])
def test_the_explainers_models_and_small_networks_of_other_data_come_along(name: str) -> None:
    model: Any = flashcaps.load(name)
    result, recipe, card = model.config["result"], read_recipe(name), (FOLDER / f"{name}.md").read_text()
    assert model.config["recipe"]["name"] == name
    assert recipe.model.name == model.name
    assert json.loads(json.dumps(recipe.model.overrides)) == model.overrides
    assert result["stored"]["interval"][1] < WORST.get(name, 1)
    for value in (result["value"], result["stored"]["value"]):
        assert f"{value:.2f} %" in card
    assert ("cut anew" in card) == (name == "small_svhn")  # these are not the published crops
    assert model(torch.rand(2, *model.image)).scores.isfinite().all()
    if name in DEMO:
        assert model.decoder is not None
        assert result["examples"] == result["stored"]["examples"] == 10_000
        assert result["commit"]
    else:
        assert sum(p.numel() for p in model.parameters()) == result["parameters"] < 300_000
        assert result["overrides"] == []  # `flashcaps train NAME` gives the number
        assert re.fullmatch(r"[0-9a-f]{12}", result["commit"])  # of a clean tree


def test_they_are_small_together_and_their_cards_name_them() -> None:
    files = shipped_files()
    assert sum(files[name].stat().st_size for name in DEMO) <= LIMIT
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < ALL
    for name, path in files.items():
        assert sorted(p.name for p in FOLDER.glob(f"{name}.*")) == sorted([f"{name}.md", path.name])
        assert f"File: `{path.name}`, {path.stat().st_size:,} bytes" in (FOLDER / f"{name}.md").read_text()


@pytest.mark.parametrize("name", shipped_files())
def test_stored_recipes_can_be_read(name: str) -> None:
    """`flashcaps evaluate NAME` and `flashcaps figures NAME` take the data and the metric from it."""
    config = read_weights(shipped_files()[name])[1]
    recipe = make_recipe(config["recipe"])
    assert (recipe.name, recipe.data.name) == (config["result"]["recipe"], config["result"]["data"])


def test_pretrained_means_the_weights_that_come_along() -> None:
    """In training mode, with overrides beside those they were trained with; new classes leave the rest."""
    loaded = flashcaps.load("attention_resnet_cifar10").state_dict()
    same, fewer = (flashcaps.create_model("attention_resnet_cifar10", pretrained=True, **given)
                   for given in ({"iterations": 1}, {"classes": 3}))  # fmt: skip
    assert same.training
    assert all(torch.equal(x, loaded[key]) for key, x in same.state_dict().items())
    assert fewer.overrides["classes"] == fewer.classes == 3
    assert {key for key, x in fewer.state_dict().items() if not torch.equal(x, loaded[key])} == {
        f"capsules.layers.2.{name}" for name in ("weight", "learned.weight", "learned.bias")}  # fmt: skip
    again: Any = flashcaps.load("attention_resnet_cifar10", classes=10)  # other classes, as many
    assert not torch.equal(again.capsules.layers[-1].weight, loaded["capsules.layers.2.weight"])


def test_pretrained_weights_that_do_not_fit() -> None:
    for given, name, words in (
        ({"pretrained": True}, "em_cifar10", "no weights of em_cifar10 come along, those of attention_resnet_cifar10"),
        ({"pretrained": "demo_em"}, "capsnet_tiny", "expected weights of capsnet_tiny, got those of capsnet_mnist"),
        ({"pretrained": True, "image": (1, 32, 32)}, "capsnet_mnist", r"layers.0.weight: expected \(10, 8, 2048"),
    ):
        with pytest.raises(ValueError, match=words):
            flashcaps.create_model(name, **given)  # type: ignore[arg-type]


def test_a_folder_without_weights_does_not_hide_a_name(here: Path) -> None:
    """`flashcaps figures demo_em` makes a folder of that name."""
    Path("demo_em", "figures").mkdir(parents=True)
    assert find_weights("demo_em") == shipped_files()["demo_em"]
