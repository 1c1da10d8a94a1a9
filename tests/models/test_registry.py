"""Models by name: sizes, errors, rebuilding; every network runs forward and backward, and survives its first step."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashcaps import ROUTING
from flashcaps.data import load_data
from flashcaps.models import Capsules, Model, create_model, list_models, model_summary, register
from flashcaps.models.registry import MODELS
from flashcaps.nn.losses import margin_loss
from flashcaps.routing.math import length

# The exact number of parameters pins an architecture that the papers' text leaves open.
SIZES = {
    "attention_diverse_matrix": 9_963_969,
    "attention_diverse_vector": 42_478_017,
    "attention_diverse_wide": 41_593_281,
    "attention_resnet_cifar10": 1_828_817,
    "attention_resnet_cifar100": 2_799_629,
    "attention_simple_cifar10": 561_297,
    "attention_simple_cifar100": 1_462_989,
    "capsnet_affnist": 13_475_648,
    "capsnet_cifar10": 22_476_448,
    "capsnet_mnist": 6_804_224 + 1_411_344,
    "capsnet_multimnist": 11_361_808,
    "capsnet_smallnorb": 9_327_104,
    "capsnet_svhn": 4_720_480,
    "capsnet_tiny": 471_056,
    "cnn_affnist": 13_276_938,
    "cnn_cifar10": 18_919_434,
    "cnn_cifar100": 19_011_684,
    "cnn_diverse_fc": 42_490_762,
    "cnn_diverse_pool": 19_553_162,
    "cnn_mnist": 35_445_522,
    "cnn_multimnist": 24_563_978,
    "cnn_smallnorb": 278_949,
    "discriminative_cifar10": 15_922_688,
    "discriminative_fashion": 8_215_568,
    "discriminative_mnist": 8_215_568,
    "discriminative_multimnist": 11_361_808,
    "dynamic_diverse": 42_478_592,
    "dynamic_resnet_cifar10": 12_451_136,
    "dynamic_resnet_cifar100": 36_044_096,
    "dynamic_simple_cifar10": 7_992_576,
    "dynamic_simple_cifar100": 31_585_536,
    # em: the paper's, and scale and shift of batch normalisation
    "em_cifar10": 453_044 + 1_172,
    "em_cifar100": 499_304 + 1_352,
    "em_resnet_cifar10": 1_710_580 + 660,
    "em_resnet_cifar100": 1_756_840 + 840,
    "em_smallnorb": 317_194 + 330,
    "heinsen_smallnorb": 271_688,
    "heinsen_sst2": 138_944,
    "heinsen_sst5": 140_480,
    "mix_sst2": 2_562 + 37,
    "mix_sst5": 6_405 + 37,
    "pool_sst2": 1280 * 2 + 2,
    "pool_sst5": 1280 * 5 + 5,
    "resnet18_cifar10": 11_173_962,
    "resnet18_cifar100": 11_220_132,
}
# Where betas begin at 0, nothing but they and the score can move in the first step.
LAYERS = ("capsules.layers.0", "capsules.layers.1.weight", "capsules.layers.1.bias")
STILL_AT_FIRST = {
    "heinsen_smallnorb": ("backbone", "primary", *LAYERS),
    "heinsen_sst2": ("depth", "linear", "norm", *LAYERS),
}
# One name of each network, that with the fewest classes: some differ in their number alone.
NETWORKS = {repr(replace(MODELS[name], classes=3)): name for name in reversed(list_models())}.values()
SQUASHED = [name for name in NETWORKS if isinstance(MODELS[name], Capsules) and MODELS[name].route.form == "squash"]


def inputs(model: Model) -> Tensor:
    return torch.rand(2, 3, *model.reads) if model.image is None else torch.rand(2, *model.image)


def assert_gradients(model: Model, still: tuple[str, ...] = ()) -> None:
    """Every parameter has a finite gradient, and one that is not zero unless its name begins with one of `still`."""
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key
        if not key.startswith(still):
            assert p.grad.abs().sum() > 0, key


def test_every_model_has_a_name_and_a_size_of_its_own() -> None:
    assert list_models() == sorted(SIZES)
    assert list_models("heinsen_sst*") == ["heinsen_sst2", "heinsen_sst5"]
    assert list_models("nothing*") == []


@pytest.mark.parametrize("name", SIZES)
def test_size_and_origin(name: str) -> None:
    summary = model_summary(name)
    assert summary.parameters == SIZES[name]
    assert summary.paper.split(",")[0] in ROUTING
    assert summary.about


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_and_backward(name: str) -> None:
    model = create_model(name, classes=3)
    chosen = {} if model.decoder is None else {"chosen": torch.tensor([1, 0])}
    out = model(inputs(model), **chosen)
    assert out.scores.shape == (2, 3)
    loss = (out.scores * torch.randn_like(out.scores)).sum()
    if model.decoder is not None:
        assert out.reconstruction.shape == (2, *model.image)
        loss = loss + out.reconstruction.square().sum()
    loss.backward()
    assert_gradients(model, STILL_AT_FIRST.get(name, ()))


@pytest.mark.parametrize("name", STILL_AT_FIRST)
def test_what_stands_still_at_first_moves_once_betas_do(name: str) -> None:
    model = create_model(name)
    for layer in model.capsules.layers:
        for p in layer.learned.values():
            nn.init.normal_(p)
    (model(inputs(model)).scores * torch.tensor([1.0, -2.0])[:, None]).sum().backward()
    assert_gradients(model)


def first_step(name: str, **overrides: Any) -> tuple[list[float], list[float]]:
    """Mean length of the primary capsules, and loss, before and after one step at 1e-3 on a digit of each class."""
    model: Any = create_model(name, decoder=False, **overrides)
    digits, (channels, *size) = load_data("digits").train, model.image
    one_of_each = [digits.labels.tolist().index(k) for k in range(10)]
    images = F.interpolate(digits.images[one_of_each] / 255, size, mode="bilinear").expand(-1, channels, -1, -1)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    lengths, losses = [], []
    for last in (False, True):
        with torch.set_grad_enabled(not last):
            u = model.primary(model.backbone(images)).pose
            loss = margin_loss(model.head(model.capsules(u)), torch.arange(10) % model.classes)
        lengths.append(length(u).mean().item())
        losses.append(loss.item())
        if not last:
            loss.backward()
            optimiser.step()
    return lengths, losses


@pytest.mark.parametrize("name", SQUASHED)
def test_primary_capsules_and_loss_survive_the_first_step(name: str) -> None:
    lengths, losses = first_step(name)
    assert lengths[1] < 0.5
    assert losses[1] <= losses[0]


def test_pytorchs_start_does_not() -> None:
    lengths, losses = first_step("capsnet_mnist", primary={"shares": 0})
    assert lengths[1] > 0.9
    assert losses[1] > 3 * losses[0]


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="name: there is no model 'capsnet_minst'; did you mean 'capsnet_mnist'"):
        create_model("capsnet_minst")
    wrong = {"capsnet_tiny": ("itertions", "iterations"), "cnn_mnist": ("dropuot", "dropout"),
             "heinsen_sst5": ("widht", "width")}  # fmt: skip
    for name, (key, near) in wrong.items():
        with pytest.raises(TypeError, match=f"{key}: {name} has no such override; did you mean '{near}'"):
            create_model(name, **{key: 1})


def test_a_builder_of_another_package_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine() -> Capsules:
        """dynamic, Fig. 1: a network of another package."""
        return MODELS["capsnet_tiny"]

    monkeypatch.setattr("flashcaps.models.registry.MODELS", dict(MODELS))
    assert register(mine) is mine
    assert model_summary("mine") == ("mine", SIZES["capsnet_tiny"], "dynamic, Fig. 1", "a network of another package")
    assert create_model("mine", classes=3).name == "mine"
    with pytest.raises(ValueError, match="there is a model 'mine' already"):
        register(mine)


@pytest.mark.parametrize(("name", "overrides"), [
    ("capsnet_tiny", {}),
    ("capsnet_tiny", {"image": (1, 30, 34), "classes": 5, "routing": "em", "hidden": [(6, 16), 4]}),
    ("capsnet_tiny", {"options": {"leaky": True, "bias": True}, "primary": {"types": 4}, "decoder": (8,)}),
    ("capsnet_tiny", {"backbone": {"channels": 8}, "original": True}),
    ("capsnet_mnist", {"backbone": {"name": "resnet", "stages": [[4, 1, 2]]}, "primary": {"kernel": 3}}),
    ("attention_simple_cifar10", {"iterations": 1, "concurrent": False, "options": {"activation": True}}),
    ("discriminative_fashion", {"image": (1, 24, 24), "decoder": False, "options": {"penalty": "l1"}}),
    ("heinsen_sst5", {"layers": 3, "width": 8}),
    ("mix_sst2", {"layers": 3, "width": 8, "classes": 4}),
    ("cnn_smallnorb", {"classes": 3, "image": (1, 32, 32)}),
])  # fmt: skip
def test_name_and_overrides_rebuild_a_model_that_takes_its_weights(name: str, overrides: dict) -> None:
    torch.manual_seed(3)
    model = create_model(name, **overrides).eval()
    torch.manual_seed(3)
    again = create_model(model.name, **json.loads(json.dumps(model.overrides))).eval()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))  # the same seed
    torch.manual_seed(4)
    again = create_model(model.name, **model.overrides).eval()
    again.load_state_dict(model.state_dict())
    x = inputs(model)
    with torch.no_grad():
        assert torch.equal(model(x).scores, again(x).scores)
        assert again.classes == model.classes == model(x).scores.shape[1]
    assert again.overrides == model.overrides
