"""What flashcaps is measured against computes the same thing."""

from typing import Any

import pytest
import torch
from torch import Tensor

import flashcaps
from benchmarks.public import PUBLIC, public_style
from flashcaps import ConvCapsules, DenseCapsules, Routed
from flashcaps.nn.capsules import CapsuleLayer

from ..conftest import assert_near
from ..layer_cases import combination


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
    gradients = [torch.autograd.grad(combination(Routed(r.pose, r.activation)), u)[0] for r in results]
    assert_near(*gradients, tolerance=1e-8)


SIZES: dict[str, Any] = {"in_dim": 4, "out_dim": 4, "backend": "reference"}
DENSE: dict[str, Any] = {"in_capsules": 7, "out_capsules": 5, **SIZES}
PLACES: dict[str, Any] = {"in_capsules": 2, "out_capsules": 3, "shared": True, "coordinates": True, **SIZES}
CONV: dict[str, Any] = {"in_types": 2, "out_types": 3, "kernel": 2, "pose": "matrix", **SIZES}
LAYERS = [
    *((DenseCapsules, name, {**DENSE, "pose": pose}, (7,), None) for name in PUBLIC for pose in ("vector", "matrix")),
    (DenseCapsules, "em", DENSE, (7,), torch.rand),
    (DenseCapsules, "heinsen", DENSE, (7,), torch.randn),
    (DenseCapsules, "heinsen", {**DENSE, "in_capsules": None}, (6,), None),
    *((DenseCapsules, "em", {**PLACES, "pose": pose}, (2, 3, 2), torch.rand) for pose in ("vector", "matrix")),
    *((ConvCapsules, "em", {**CONV, "over": over}, (2, 3, 4), torch.rand) for over in ("types", "positions")),
]


@pytest.mark.parametrize(("kind", "routing", "sizes", "children", "activation"), LAYERS)
def test_a_layer(kind: Any, routing: str, sizes: dict[str, Any], children: tuple[int, ...], activation: Any) -> None:
    """Children as large as they are, more or less there, at places, or under a kernel."""
    u = torch.randn(3, *children, 4, dtype=torch.float64)
    assert_same(kind(routing, **sizes), u, activation and activation(3, *children, dtype=torch.float64))


PRINTED = {"relative": False, "norm_activation": False}  # em as public code has it


@pytest.mark.parametrize(("name", "options"), [("attention_simple_cifar10", {}), ("em_cifar10", PRINTED)])
def test_a_whole_network(name: str, options: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"image": (3, 16, 16), "backbone": {"channels": 4}, "options": options}
    model = flashcaps.create_model(name, backend="reference", **sizes).double()
    images = torch.randn(2, *model.image, dtype=torch.float64)
    expected = model(images).scores
    public_style(model.capsules.layers)
    assert not any(isinstance(m, CapsuleLayer) for m in model.modules())
    assert_near(model.double()(images).scores, expected)
