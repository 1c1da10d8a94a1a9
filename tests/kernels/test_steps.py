"""Layers with backend="triton", in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.kernels import TRITON
from flashcaps.nn import base as capsule_layer

from ..conftest import TOLERANCE, assert_near

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def run(routing: str, kind: str, backend: str, **options: Any) -> dict[str, torch.Tensor]:
    """Pose, activation and every gradient of a small layer, the same for every backend."""
    torch.manual_seed(0)
    if kind == "dense":
        layer: Any = flashcaps.DenseCapsules(
            routing, in_capsules=5, in_dim=4, out_capsules=3, out_dim=4, backend=backend, **options
        )
        u = torch.randn(2, 5, 4)
    elif kind == "any":
        layer = flashcaps.DenseCapsules(
            routing, in_capsules=None, in_dim=4, out_capsules=3, out_dim=4, pose="matrix", backend=backend, **options
        )
        u = torch.randn(2, 5, 4)
    else:
        layer = flashcaps.ConvCapsules(
            routing, in_types=2, in_dim=4, out_types=3, out_dim=4, kernel=2, pose="matrix", backend=backend, **options
        )
        u = torch.randn(2, 2, 3, 3, 4)
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    layer, u = layer.to(DEVICE), u.to(DEVICE).requires_grad_()
    if backend == "reference":
        layer, u = layer.double(), u.detach().double().requires_grad_()
    routed = layer(u)
    loss = routed.pose.sin().sum() + (0 if routed.activation is None else routed.activation.cos().sum())
    names = ["u", *(n for n, _ in layer.named_parameters())]
    grads = torch.autograd.grad(loss, [u, *layer.parameters()])
    return {"pose": routed.pose, **dict(zip(names, grads, strict=True))}


@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("routing", TRITON)
def test_same_numbers_and_gradients_as_the_reference(routing: str, kind: str) -> None:
    options = {} if routing == "discriminative" else {"iterations": 2}
    ours, reference = run(routing, kind, "triton", **options), run(routing, kind, "reference", **options)
    tolerance = TOLERANCE[torch.float32]
    for name, x in reference.items():
        assert_near(ours[name].double(), x, tolerance.output if name == "pose" else tolerance.gradient, name)


@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_children_that_share_their_transform_and_bias(routing: str) -> None:
    ours, reference = (run(routing, "any", backend, vote_bias=True) for backend in ("triton", "reference"))
    tolerance = TOLERANCE[torch.float32]
    for name, x in reference.items():
        assert_near(ours[name].double(), x, tolerance.output if name == "pose" else tolerance.gradient, name)


def test_votes_it_cannot_take_are_an_error() -> None:
    layer = flashcaps.DenseCapsules("em", in_capsules=2, in_dim=3, out_capsules=2, out_dim=3, backend="triton").double()
    with pytest.raises(ValueError, match="float64"):
        layer(torch.randn(1, 2, 3, dtype=torch.float64))


def test_an_algorithm_without_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capsule_layer, "TRITON", ("em",))
    with pytest.raises(ValueError, match="'dynamic' has no 'triton' kernel"):
        flashcaps.DenseCapsules("dynamic", in_capsules=2, in_dim=3, out_capsules=2, out_dim=3, backend="triton")
