"""What flashcaps is measured against computes the same thing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flashcaps
from benchmarks.public import PUBLIC, public_style
from flashcaps import ConvCapsules, DenseCapsules, Routed
from flashcaps.nn.capsules import CapsuleLayer

from ..conftest import assert_near


def combination(routed: Routed) -> Tensor:
    """A number that depends on all of the result."""
    parts = [x for x in (routed.pose, routed.activation) if x is not None]
    return sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape)).sum() for x in parts)


def assert_same(layer: Any, u: Tensor, activation: Tensor | None = None) -> None:
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    layer = layer.double()
    if layer.name == "attention":  # PublicAttention's LayerNorm starts as torch's does
        torch.nn.init.ones_(layer.learned["weight"])
        torch.nn.init.zeros_(layer.learned["bias"])
    public = PUBLIC[layer.name](layer).double()
    u.requires_grad_()
    results = [module(u, activation) for module in (public, layer)]
    assert_near(results[0].pose, results[1].pose)
    assert (results[0].activation is None) == (results[1].activation is None)
    gradients = [torch.autograd.grad(combination(r), u)[0] for r in results]
    assert_near(*gradients, tolerance=1e-8)


@pytest.mark.parametrize("routing", list(PUBLIC))
@pytest.mark.parametrize("pose", ["vector", "matrix"])
def test_dense(routing, pose):
    options = {} if routing == "discriminative" else {"iterations": 3}
    layer = DenseCapsules(
        routing, in_capsules=7, in_dim=4, out_capsules=5, out_dim=4, pose=pose, backend="reference", **options
    )
    assert_same(layer, torch.randn(3, 7, 4, dtype=torch.float64))


@pytest.mark.parametrize(("routing", "activation"), [("em", torch.rand), ("heinsen", torch.randn)])
def test_children_that_are_more_or_less_there(routing, activation):
    layer = DenseCapsules(routing, in_capsules=7, in_dim=4, out_capsules=5, out_dim=4, backend="reference")
    assert_same(layer, torch.randn(3, 7, 4, dtype=torch.float64), activation(3, 7, dtype=torch.float64))


@pytest.mark.parametrize("pose", ["vector", "matrix"])
def test_a_class_layer_shared_over_places(pose):
    layer = DenseCapsules(
        "em", in_capsules=2, in_dim=4, out_capsules=3, out_dim=4, pose=pose, shared=True, coordinates=True,
        backend="reference",
    )
    assert_same(layer, torch.randn(2, 2, 3, 2, 4, dtype=torch.float64), torch.rand(2, 2, 3, 2, dtype=torch.float64))


def test_any_number_of_children():
    layer = DenseCapsules("heinsen", in_capsules=None, in_dim=4, out_capsules=3, out_dim=4, backend="reference")
    assert_same(layer, torch.randn(2, 6, 4, dtype=torch.float64))


@pytest.mark.parametrize("over", ["types", "positions"])
def test_convolutional(over):
    layer = ConvCapsules(
        "em", in_types=2, in_dim=4, out_types=3, out_dim=4, kernel=2, pose="matrix", over=over, backend="reference"
    )
    assert_same(layer, torch.randn(2, 2, 3, 4, 4, dtype=torch.float64), torch.rand(2, 2, 3, 4, dtype=torch.float64))


@pytest.mark.parametrize("name", ["attention_simple_cifar10", "em_cifar10"])
def test_a_whole_network(name):
    torch.manual_seed(0)
    model = flashcaps.create_model(name, image=(3, 16, 16), backbone={"channels": 4}, backend="reference").double()
    images = torch.randn(2, *model.image, dtype=torch.float64)
    expected = model(images).scores
    public_style(model.capsules.layers)
    assert not any(isinstance(m, CapsuleLayer) for m in model.modules())
    assert_near(model.double()(images).scores, expected)
