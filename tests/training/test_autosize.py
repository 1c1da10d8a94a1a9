"""Models sized by rule: they take the images, keep to their limits, and say why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.models import create_model
from flashcaps.training.autosize import LONGEST, LOSSES, PIXELS, WEIGHTS, own_command, own_recipe, size_model
from flashcaps.training.loader import open_sources
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.memory import memory_warning
from flashcaps.training.recipe import read_recipe
from tests.data.test_user_images import write_table
from tests.fake_timm import FakeTimm
from tests.own_pictures import write_pictures

IMAGES = [(1, 6, 6), (1, 28, 28), (3, 50, 70), (3, 70, 50), (2, 13, 90), (3, 96, 96), (1, 128, 128), (3, 300, 20)]


@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_any_size_fits(image: tuple[int, int, int]) -> None:
    sized = size_model(image, 4)
    model = create_model(sized.name, **sized.overrides).eval()
    with torch.no_grad():
        pose = model.primary(model.backbone(torch.rand(1, *image))).pose
        assert model(torch.rand(2, *image)).scores.shape == (2, 4)
    assert tuple(pose.shape[2:4]) == sized.grid
    assert max(sized.grid) <= LONGEST
    assert model.image == image
    assert (model.decoder is not None) == (image[0] * image[1] * image[2] <= PIXELS)
    assert len(sized.why) == 4


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_transforms_keep_to_their_budget(classes: int) -> None:
    sized = size_model((3, 32, 32), classes)
    model = create_model(sized.name, **sized.overrides)
    (layer,) = model.capsules.layers
    assert layer.weight.numel() <= WEIGHTS or sized.overrides["primary"]["types"] == 2
    assert f"{layer.weight.numel():,} weights" in sized.why[1]


@pytest.mark.parametrize("routing", LOSSES)
def test_any_algorithm(routing: str) -> None:
    sized = size_model((1, 20, 20), 3, routing)
    model = create_model(sized.name, **sized.overrides)
    assert model.capsules.layers[0].name == routing


def test_the_stride_is_the_smallest_that_does() -> None:
    strides = [size_model((1, n, n), 2).overrides["backbone"]["stride"] for n in (14, 28, 40, 60, 90)]
    assert strides == sorted(strides)
    assert strides[0] == 1
    assert "stages" in size_model((1, 224, 224), 2).overrides["backbone"]


def test_too_small_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 6 x 6 pixels, got 5 x 9"):
        size_model((1, 5, 9), 2)
    with pytest.raises(ValueError, match="routing: expected one of"):
        size_model((1, 9, 9), 2, "dynamics")


def test_a_recipe_for_a_folder(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "my shapes", 60, 20, 24)
    recipe, why = own_recipe("images", str(folder), ["epochs=3"])
    assert (recipe.name, recipe.data.name, recipe.train.epochs) == ("my_shapes", "images", 3)
    assert recipe.data.options["class_names"] == ["bar", "disc", "ring"]
    assert why[0].startswith("data: 42 pictures to train on, brought to 3 x 20 x 24; 3 classes of 20 to 20")
    assert why[-1].startswith("training: 3 epochs, batch 4, margin loss")
    sources = open_sources(recipe, None, torch.device("cpu"), None)
    assert sources.dataset.shape == (3, 20, 24)
    smaller, _ = own_recipe("images", str(folder), routing="attention", size=(16, 16))
    assert (smaller.loss.kind, smaller.model.overrides["image"]) == ("cross_entropy", [3, 16, 16])


@pytest.mark.parametrize("size", ["3", "[16, 16]"])
def test_pictures_and_model_have_one_size(tmp_path: Path, size: str) -> None:
    folder = str(write_pictures(tmp_path, 12, 20, 24))
    with pytest.raises(ValueError, match=r"data\.size: expected \[20, 24\], which the model is made for, got .*"):
        own_recipe("images", folder, [f"size={size}"])
    own_recipe("images", folder, ["size=[20,24]"])


def test_the_command_that_makes_a_recipe_again(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "shapes", 12, 20, 24)
    recipe, _ = own_recipe("images", str(folder), routing="em", size=(10, 12))
    assert own_command(recipe) == ["--images", str(folder.resolve()), "--size", "10", "12", "--routing", "em"]
    assert own_command(read_recipe("tiny")) == ["tiny"]


def test_a_network_of_timm_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", FakeTimm())
    folder = write_pictures(tmp_path, 12, 64, 48)
    recipe, why = own_recipe("images", str(folder), ["epochs=1"], backbone="timm:resnet18", size=(64, 48))
    assert "timm:resnet18, pretrained, whose last feature map has 16 channels of 3 x 2" in why[1]
    assert "a grid of 3 x 2 x 16 types = 96" in why[2]
    timm: Any = sys.modules["timm"]
    assert memory_warning(recipe, torch.device("cpu"), free=2**40) is None
    assert timm.asked == [False, False]  # nothing was fetched to choose sizes
    model = create_model(recipe.model.name, **recipe.model.overrides)
    assert timm.asked[-1]
    assert model(torch.rand(2, 3, 64, 48)).scores.shape == (2, 3)
    assert own_command(recipe)[-2:] == ["--backbone", "timm:resnet18"]
    large = size_model((3, 224, 224), 3, backbone="timm:resnet18")
    assert large.grid == (6, 6)
    assert large.overrides["primary"]["kernel"] == 3
    with pytest.raises(ValueError, match=r"backbone: expected timm:NAME, as timm:resnet18, got 'resnet18'"):
        size_model((3, 64, 48), 3, backbone="resnet18")


def test_it_trains(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "shapes", 90, 16, 20)
    light = ["epochs=12", "lr=0.006", "model.decoder=false", "loss.reconstruction=0", "evaluate_every=12", "ema=0"]
    recipe, _ = own_recipe("images", str(folder), light)
    outcome = train(recipe, RunOptions("cpu", str(tmp_path / "run")))
    assert outcome.test.examples == 18
    assert outcome.test.error <= 25


def test_a_recipe_for_several_labels(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,sea,sky", [",1,0", ",0,1", ",1,1", ",0,0"] * 5)
    for routing, loss in (("dynamic", "margin"), ("heinsen", "bce"), ("em", "margin")):
        recipe, why = own_recipe("table", str(table), routing=routing)
        assert recipe.loss.kind == loss
        assert recipe.loss.reconstruction == 0
        assert recipe.model.overrides["decoder"] is False
        assert "several at once" in why[0]
        assert "which of several classes" in why[4]
