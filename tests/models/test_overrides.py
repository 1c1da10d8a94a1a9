"""Any algorithm on any backbone, any image, any number of classes and capsule layers."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from flashcaps import ROUTING, Activations, Lengths, SharedLinear
from flashcaps.models import Capsules, create_model, list_models
from flashcaps.models.registry import MODELS
from flashcaps.models.specs import GatedLinear
from flashcaps.nn.backbones import Standardise

from ..conftest import assert_near
from .test_registry import SIZES, assert_gradients

# By what an algorithm's classes are: the form of the primary capsules, and the head.
FORM_AND_HEAD = {
    "length": ("squash", Lengths),
    "probability": ("sigmoid", Activations),
    "score": ("score", Activations),
    None: ("norm", SharedLinear),
}
CAPSULE_MODELS = [name for name in list_models() if isinstance(MODELS[name], Capsules)]
PAIRS = list(zip(CAPSULE_MODELS, itertools.cycle(ROUTING), strict=False))
SMALL = {"backbone": {"channels": 8}, "primary": {"types": 3}}


def check(model: nn.Module) -> None:
    """Forward and backward on its image, every gradient there and finite."""
    model.decoder = None
    out = model(torch.rand(2, *model.image))
    assert out.scores.shape == (2, model.classes)
    (out.scores * torch.randn_like(out.scores)).sum().backward()
    assert_gradients(model, still=("",))


@pytest.mark.parametrize(("name", "overrides", "rows"), [
    ("capsnet_tiny", {"backbone": "conv"}, 1),
    ("capsnet_tiny", {"backbone": "resnet"}, 1),
    ("em_smallnorb", {"primary": {"types": 4}}, 4),
    ("attention_simple_cifar10", {"primary": {"types": 4}}, 4),
    ("heinsen_smallnorb", {"primary": {"types": 4}}, 4),
])  # fmt: skip
@pytest.mark.parametrize("routing", ROUTING)
def test_every_algorithm_on_every_network(name: str, overrides: dict, rows: int, routing: str) -> None:
    model = create_model(name, routing=routing, image=(1, 30, 34), classes=5, **overrides)
    given = ROUTING[routing].output_activation
    assert (model.primary.form, type(model.head)) == FORM_AND_HEAD[given]
    assert {layer.rows for layer in model.capsules.layers} == {1 if given == "length" else rows}
    check(model)


@pytest.mark.parametrize(("name", "routing"), PAIRS)
def test_every_capsule_model_builds_with_any_algorithm(name: str, routing: str) -> None:
    """Algorithms take turns: what they build with depends on their declarations, not on the model."""
    with torch.device("meta"):
        model = create_model(name, routing=routing, hidden=[7, (5, 16)], decoder=True, classes=3)
    assert {layer.name for layer in model.capsules.layers} == {routing}
    assert [layer.parents for layer in model.capsules.layers][-3:] == [7, 5, 3]


def test_another_routing_forgets_the_options_of_the_first_and_keeps_the_backend() -> None:
    model = create_model("capsnet_cifar10", routing="em", iterations=1, options={"eps": 0.1}, **SMALL)
    assert model.capsules.layers[0].routing.eps == 0.1
    assert model.capsules.layers[0].routing.iterations == 1
    same = create_model("capsnet_cifar10", routing="dynamic", backend="reference", options={"bias": True}, **SMALL)
    assert same.capsules.layers[0].routing.leaky
    assert same.capsules.layers[0].routing.bias
    assert same.capsules.layers[0].backend == "reference"


def test_a_decoder_is_left_out_or_added() -> None:
    for name, overrides, more in (
        ("capsnet_mnist", {"options": {"bias": True}}, 160),  # that of the public code
        ("capsnet_mnist", {"decoder": False}, -1_411_344),
        ("discriminative_multimnist", {"decoder": False}, -1_936_144),
    ):
        with torch.device("meta"):
            model = create_model(name, **overrides)
        assert sum(p.numel() for p in model.parameters()) == SIZES[name] + more
    model = create_model("capsnet_tiny", decoder=False)
    assert model.decoder is None
    with pytest.raises(ValueError, match=r"no decoder.*decoder=True"):
        model(torch.rand(1, 1, 28, 28), torch.tensor([0]))
    model = create_model("attention_simple_cifar10", decoder=[8, 9], image=(3, 17, 19), **SMALL)
    assert model(torch.rand(2, 3, 17, 19), torch.tensor([1, 2])).reconstruction.shape == (2, 3, 17, 19)


def test_hidden_layers_go_below_the_class_layer_and_take_its_view_of_the_children() -> None:
    plain = create_model("capsnet_tiny", hidden=[6, (7, 9)], decoder=False)
    assert [(x.groups, x.parents, x.out_dim) for x in plain.capsules.layers] == [(128, 6, 16), (6, 7, 9), (7, 10, 16)]
    check(plain)
    shared = create_model("em_smallnorb", hidden=[6])
    *_, hidden, top = shared.capsules.layers
    assert (hidden.shared, hidden.coordinates, hidden.groups, hidden.parents) == (True, True, 32, 6)
    assert (top.shared, top.coordinates, top.groups, top.parents) == (False, False, 6, 5)
    check(shared)


def test_ablations_of_the_attention_paper() -> None:
    small = {"image": (3, 16, 16), "primary": {"types": 4}, "iterations": 3}
    a = create_model("attention_simple_cifar10", options={"norm": False}, **small)
    b = create_model("attention_simple_cifar10", concurrent=False, **small)
    c = create_model("attention_simple_cifar10", options={"activation": True}, **small)
    assert a.capsules.concurrent
    assert a.capsules.iterations == 3
    assert create_model("capsnet_tiny", routing="attention").capsules.iterations == 2  # once would be no routing
    assert [x.routing.iterations for x in b.capsules.layers] == [3, 3, 3]
    assert c.primary.form == "sigmoid"
    assert type(c.head) is GatedLinear
    for model in (a, b, c):
        check(model)
    out = c(torch.rand(2, 3, 16, 16))
    assert_near(out.scores, c.head.linear(out.routed.pose * out.routed.activation[..., None])[..., 0])


def test_over_goes_to_convolutional_layers_alone_and_an_option_per_iteration_with_their_number() -> None:
    model = create_model("em_smallnorb", iterations=2, options={"over": "types", "inverse_temperature": [0.1, 0.2]})
    assert [x.over for x in model.capsules.layers[:2]] == ["types", "types"]
    for layer in model.capsules.layers:
        assert (layer.routing.iterations, layer.routing.inverse_temperature) == (2, [0.1, 0.2])


def test_the_original_start_which_leaves_a_given_module_alone() -> None:
    model = create_model("capsnet_mnist", original=True)
    for layer, std, bias in ((model.backbone[0], 0.05, 0.1), (model.primary.pose, 0.1, 0.0),
                             (model.decoder.layers[0], 0.1, 0.1)):  # fmt: skip
        assert layer.weight.abs().max() <= 2 * std
        # a normal cut at two standard deviations has 0.8796 of its own
        assert layer.weight.std().item() == pytest.approx(0.8796 * std, rel=0.03)
        assert_near(layer.bias, bias)
    assert (model.primary.shares, model.primary.shift) == (32, 0.1)
    given = nn.Conv2d(1, 4, 3)
    before = given.weight.clone()
    model = create_model("capsnet_tiny", backbone=given, original=True)
    assert model.backbone is given
    assert torch.equal(given.weight, before)


def test_the_authors_network_for_cifar10() -> None:
    """"Same" padding, 9,216 children, a bias, and one share more than types for "none of the above"."""
    with torch.device("meta"):
        model = create_model("capsnet_cifar10")
    layer = model.capsules.layers[0]
    assert (layer.groups, layer.routing.leaky, layer.routing.bias) == (12 * 12 * 64, True, True)
    assert model.primary.shares == 65
    assert isinstance(model.backbone[0], Standardise)


def test_heinsen_starts_from_kaiming_and_takes_any_size() -> None:
    model = create_model("heinsen_smallnorb")
    convs = [m for part in (model.backbone, model.primary) for m in part.modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == 8
    for conv in convs:
        fan_in = conv.weight[0].numel()
        assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.1)
        assert conv.weight.abs().max() > 2.2 * math.sqrt(2 / fan_in)  # normal: a uniform one ends at 1.73
        assert_near(conv.bias, 0.0)
    assert model.eval()(torch.rand(1, 2, 51, 64)).scores.shape == (1, 5)


def test_numbers_of_another_backbone_by_its_name() -> None:
    model = create_model("capsnet_mnist", backbone={"name": "resnet", "stages": [[4, 1, 2]]}, primary={"kernel": 3})
    assert model.backbone[0].weight.shape == (4, 1, 3, 3)


WRONG: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "classes: expected a whole number", {"classes": 0}),
    (ValueError, r"image: expected \(channels, height, width\)", {"image": (28, 28)}),
    (ValueError, "image: too small: 6 x 6 places reach primary, whose kernel is 9", {"image": (1, 14, 14)}),
    (ValueError, "image.*does not pass through the backbone", {"image": (1, 7, 7)}),
    (ValueError, "routing: expected one of.*did you mean 'dynamic'", {"routing": "dynamics"}),
    (ValueError, "backbone: expected one of.*did you mean 'resnet'", {"backbone": {"name": "resnets", "stages": []}}),
    (TypeError, "backbone: ResNet has no 'stage'; did you mean 'stages'", {"backbone": {"name": "resnet", "stage": 1}}),
    (ValueError, "iterations: expected at least 1, got 0", {"iterations": 0}),
    (ValueError, "options: expected no iterations among them, got 1; give", {"options": {"iterations": 1}}),
    (TypeError, "primary: Primary has no 'type'; did you mean 'types'", {"primary": {"type": 3}}),
    (TypeError, r"leeky: .*did you mean 'leaky'", {"options": {"leeky": True}}),
]


def test_errors_name_the_argument_and_the_remedy() -> None:
    for error, message, overrides in WRONG:
        with pytest.raises(error, match=message):
            create_model("capsnet_mnist", **overrides)
    with pytest.raises(ValueError, match="dropout: expected a number from 0"):
        create_model("cnn_mnist", dropout=1.5)
    with pytest.raises(ValueError, match=r"images: expected \(B, 1, 28, 28\), got \(1, 3, 28, 28\)"):
        create_model("capsnet_tiny")(torch.zeros(1, 3, 28, 28))
