"""Names, sizes, errors, rebuilding."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from flashcaps.models import Capsules, create_model, list_models, model_summary, register

from .sizes import SIZES

PAPERS = {"dynamic", "em", "attention", "heinsen", "discriminative"}


def test_every_model_has_a_size_here_and_every_size_a_model() -> None:
    assert list_models() == sorted(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_size_and_origin(name: str) -> None:
    summary = model_summary(name)
    assert summary.parameters == SIZES[name]
    assert summary.paper.split(",")[0] in PAPERS
    assert summary.about


def test_patterns_choose_among_names() -> None:
    assert list_models("heinsen_sst*") == ["heinsen_sst2", "heinsen_sst5"]
    assert list_models("nothing*") == []


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="name: there is no model 'capsnet_minst'; did you mean 'capsnet_mnist'"):
        create_model("capsnet_minst")


@pytest.mark.parametrize(
    ("name", "key", "near"),
    [
        ("capsnet_tiny", "itertions", "iterations"),
        ("cnn_mnist", "dropuot", "dropout"),
        ("heinsen_sst5", "widht", "width"),
    ],
)
def test_a_wrong_override_is_answered_with_the_nearest(name: str, key: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"{key}: {name} has no such override; did you mean '{near}'"):
        create_model(name, **{key: 1})


def test_a_name_is_registered_once() -> None:
    def capsnet_mnist() -> Capsules:
        raise AssertionError("never called")

    with pytest.raises(ValueError, match="there is a model 'capsnet_mnist' already"):
        register(capsnet_mnist)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("capsnet_tiny", {}),
        ("capsnet_tiny", {"image": (1, 30, 34), "classes": 5, "routing": "em", "hidden": [(6, 16), 4]}),
        ("capsnet_tiny", {"options": {"leaky": True, "bias": True}, "primary": {"types": 4}, "decoder": (8,)}),
        ("capsnet_tiny", {"backbone": {"channels": 8}, "original": True}),
        ("attention_simple_cifar10", {"iterations": 3, "concurrent": False, "options": {"activation": True}}),
        ("discriminative_fashion", {"image": (1, 24, 24), "decoder": False, "options": {"penalty": "l1"}}),
        ("heinsen_sst5", {"layers": 3, "width": 8}),
        ("mix_sst2", {"layers": 3, "width": 8, "classes": 4}),
        ("cnn_cifar10", {"classes": 3, "image": (1, 32, 32)}),
    ],
)
def test_name_and_overrides_rebuild_a_model_that_takes_its_weights(name: str, overrides: dict) -> None:
    model = create_model(name, **overrides).eval()
    again = create_model(model.name, **json.loads(json.dumps(model.overrides))).eval()
    again.load_state_dict(model.state_dict())
    inputs = torch.rand(2, 4, 3, 8) if model.image is None else torch.rand(2, *model.image)
    with torch.no_grad():
        assert torch.equal(model(inputs).scores, again(inputs).scores)
    assert again.classes == model.classes == model(inputs).scores.shape[1]
    assert again.overrides == model.overrides


def test_the_same_seed_gives_the_same_weights() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(create_model("em_smallnorb").state_dict())
    assert all(torch.equal(x, models[1][k]) for k, x in models[0].items())


def test_a_module_as_backbone_is_named_and_has_to_be_given_again() -> None:
    model = create_model("capsnet_tiny", backbone=nn.Sequential(nn.Conv2d(1, 6, 5, 2), nn.ReLU()))
    assert model(torch.rand(1, 1, 28, 28)).scores.shape == (1, 10)
    assert model.overrides == {"backbone": {"module": "Sequential"}}
    with pytest.raises(ValueError, match=r"no name rebuilds, Sequential; give it again"):
        create_model(model.name, **model.overrides)
