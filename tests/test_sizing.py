"""Models sized by rule: they take the images, keep to their limits, and say why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flashcaps.models import create_model
from flashcaps.recipe import read_recipe
from flashcaps.sizing import (
    LONGEST,
    LOSSES,
    PIXELS,
    WEIGHTS,
    memory_needed,
    memory_warning,
    own_command,
    own_recipe,
    size_model,
    timm_backbone,
)
from flashcaps.sources import open_sources
from flashcaps.train import Place, train
from tests.own_pictures import write_pictures
from tests.test_own_data import write_table

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


def test_the_command_that_makes_a_recipe_again(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "shapes", 12, 20, 24)
    recipe, _ = own_recipe("images", str(folder), routing="em", size=(10, 12))
    assert own_command(recipe) == ["--images", str(folder.resolve()), "--size", "10", "12", "--routing", "em"]
    assert own_command(read_recipe("tiny")) == ["tiny"]


class Maps(nn.Module):
    """What timm gives: several feature maps, the deepest last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 8, 7, 8), nn.Conv2d(8, 16, 3, 2)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.first(x)
        return [y, self.second(y)]


def test_a_backbone_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timm:
        @staticmethod
        def create_model(name: str, *, pretrained: bool, features_only: bool, in_chans: int) -> nn.Module:
            assert (name, pretrained, features_only) == ("resnet18", True, True)
            return Maps(in_chans)

    backbone = timm_backbone("resnet18", timm=Timm)
    model = create_model(
        "capsnet_tiny", image=(3, 224, 224), classes=5, backbone=backbone, primary={"kernel": 3}, decoder=False
    )
    model(torch.rand(1, 3, 224, 224)).scores.sum().backward()
    assert backbone.network.second.weight.grad.abs().sum() > 0

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ImportError, match=r"or give any nn\.Module"):
        timm_backbone("resnet18")


def test_it_trains(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "shapes", 90, 16, 20)
    light = ["epochs=12", "lr=0.006", "model.decoder=false", "loss.reconstruction=0", "evaluate_every=12", "ema=0"]
    recipe, _ = own_recipe("images", str(folder), light)
    outcome = train(recipe, Place("cpu", str(tmp_path / "run")))
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


def test_memory_is_counted_before_it_runs_out(tmp_path: Path) -> None:
    recipe, _ = own_recipe("images", str(write_pictures(tmp_path, 12, 20, 24)))
    cpu = torch.device("cpu")
    model = create_model(recipe.model.name, **recipe.model.overrides)
    one, two = (memory_needed(model, (3, 20, 24), n) for n in (1, 2))
    weights = 4 * sum(p.numel() for p in model.parameters())
    features = 4 * 64 * 9 * 11  # of the first convolution
    assert one - (two - one) == 5 * weights
    assert two - one >= 2 * features
    assert memory_warning(recipe, cpu, 100 * two) is None
    enough = int((5 * weights + 1.5 * (two - one)) / 0.8)
    said = memory_warning(recipe, cpu, enough)
    assert said is not None
    assert said.endswith("batch=1 would fit")
    assert "make images smaller" in str(memory_warning(recipe, cpu, 1000))
