"""Backbones of timm and of one's own: what a file remembers of them, and how they are loaded again."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flashcaps
from flashcaps.models.timm import Timm
from flashcaps.training.checkpoint import save_weights
from tests.fake_timm import MEAN, STD, FakeTimm

SIZES: dict[str, Any] = {"image": (3, 96, 96), "classes": 5, "primary": {"kernel": 3, "stride": 2}, "decoder": False}


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> FakeTimm:
    fake = FakeTimm()
    monkeypatch.setitem(sys.modules, "timm", fake)
    return fake


@pytest.mark.parametrize("given", ["timm:resnet18", {"timm": "resnet18"}, "module"])
def test_a_network_of_timm_is_built_again_by_name(given: Any, timm: FakeTimm, tmp_path: Path) -> None:
    backbone = Timm("resnet18").build(3) if given == "module" else given
    model = flashcaps.create_model("capsnet_tiny", backbone=backbone, original=True, **SIZES)
    assert timm.asked == [True]
    assert (model.backbone.network.first.weight == 0.125).all()  # type: ignore[union-attr]  # the published ones
    save_weights(tmp_path / "w.safetensors", model, {})
    again = flashcaps.load(tmp_path / "w.safetensors")
    assert timm.asked == [True, False]  # nothing is fetched for weights that are in the file
    x = torch.rand(2, 3, 96, 96)
    torch.testing.assert_close(again(x).scores, model.eval()(x).scores, rtol=0, atol=0)
    save_weights(tmp_path / "again.safetensors", again, {})
    torch.testing.assert_close(flashcaps.load(tmp_path / "again.safetensors")(x).scores, again(x).scores)


def test_images_are_normalised_as_it_was_trained(timm: FakeTimm) -> None:
    backbone: Any = Timm("resnet18").build(3)
    x = torch.rand(2, 3, 96, 96)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    torch.testing.assert_close(backbone(x), backbone.network((x - mean) / std)[-1])
    grey: Any = Timm("resnet18").build(1)
    torch.testing.assert_close(grey(x[:, :1]), grey.network(x[:, :1])[-1])
    assert not [name for name in backbone.state_dict() if "mean" in name]


def test_a_module_of_ones_own_has_to_be_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"or give any nn\.Module"):
        flashcaps.create_model("capsnet_tiny", backbone="timm:resnet18", **SIZES)

    def mine() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 7, 8), nn.ReLU())

    model = flashcaps.create_model("capsnet_tiny", backbone=mine(), **SIZES)
    path = tmp_path / "w.safetensors"
    save_weights(path, model, {})
    with pytest.raises(ValueError, match=r"no name rebuilds, Sequential; give it again: load\(path, backbone=module\)"):
        flashcaps.load(path)
    again = flashcaps.load(path, backbone=mine())
    x = torch.rand(2, 3, 96, 96)
    torch.testing.assert_close(again(x).scores, model.eval()(x).scores, rtol=0, atol=0)
    save_weights(tmp_path / "again.safetensors", again, {})
    with pytest.raises(RuntimeError, match="size mismatch"):
        flashcaps.load(path, backbone=nn.Sequential(nn.Conv2d(3, 4, 7, 8), nn.ReLU()))
