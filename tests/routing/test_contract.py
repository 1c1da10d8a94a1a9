"""What every algorithm in `ROUTING` promises, whoever wrote it. A new one needs no line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps import ROUTING, CapsuleStack, ConvCapsules, DenseCapsules, Learned, Routed, Routing, Sizes, Step
from flashcaps.kernels.dispatch import TWINS
from flashcaps.nn.capsules import CapsuleLayer

from ..conftest import TOLERANCE, assert_near
from ..layer_cases import combination, outputs

DOUBLE = {"dtype": torch.float64}
NO_DISTRIBUTION = {"discriminative"}  # signed coefficients, by design


def mean_routing(votes: Tensor, *, gain: Tensor, record: bool = False, softmax: Callable[..., Tensor]) -> Routed:
    """Parents are the mean of their votes: the least an algorithm can be."""
    b, i, j, _ = votes.shape
    c = softmax(votes.new_zeros(b, i, j))
    pose = gain[:, None] * torch.einsum("bij,bijd->bjd", c, votes.to(gain.dtype))
    return Routed(pose, None, c, history=(Step(c, pose),) if record else None)


@dataclass(frozen=True)
class Mean(Routing):
    """An algorithm as a contributor writes it: a function, what it learns, how it is called."""

    function = staticmethod(mean_routing)

    iterations: int = 1

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        return {"gain": Learned((sizes.parents,), start=1.0)}

    def run(
        self,
        function: Callable[..., Routed],
        votes: Any,
        activation: Tensor | None,
        learned: dict[str, Tensor],
        **common: Any,
    ) -> Routed:
        return function(votes, **learned, **common)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """`ROUTING` with one line more."""
    ROUTING["mean"] = Mean
    yield
    del ROUTING["mean"]


EVERY = pytest.mark.parametrize("routing", [*ROUTING, "mean"])
LAYERS = pytest.mark.parametrize("kind", ["dense", "shared", "conv"])


def build(kind: str, routing: str, dtype: torch.dtype = torch.float64) -> CapsuleLayer:
    sizes: dict[str, Any] = {"in_dim": 3, "out_dim": 4}
    if kind == "conv":
        layer = ConvCapsules(routing, in_types=2, out_types=3, kernel=2, **sizes)
    else:
        layer = DenseCapsules(
            routing, in_capsules=18 if kind == "dense" else 2, out_capsules=3, shared=kind == "shared", **sizes
        )
    with torch.no_grad():
        for x in layer.state_dict(keep_vars=True).values():
            x.add_(0.3 * torch.randn_like(x))
    return layer.to(dtype)


def children(batch: int = 3) -> Tensor:
    return torch.randn(batch, 2, 3, 3, 3, **DOUBLE)


@EVERY
@LAYERS
def test_shapes(kind: str, routing: str) -> None:
    routed = build(kind, routing)(children(), coupling=True, record=True)
    places = (2, 2) if kind == "conv" else ()
    assert routed.pose.shape == (3, 3, *places, 4)
    assert routed.activation is None or routed.activation.shape == (3, 3, *places)
    assert routed.coupling.shape == (3, 8 if kind == "conv" else 18, 3, *places)
    assert routed.variance is None or routed.variance.shape == routed.pose.shape


@EVERY
@LAYERS
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_dtype_is_kept(kind: str, routing: str, dtype: torch.dtype) -> None:
    routed = build(kind, routing, dtype)(children().to(dtype), record=True)
    assert routed.pose.dtype == dtype
    assert routed.activation is None or routed.activation.dtype == dtype
    assert routed.variance is None or routed.variance.dtype == (
        torch.float64 if dtype == torch.float64 else torch.float32
    )
    assert all(step.pose.dtype == dtype for step in routed.history)
    assert all(x.isfinite().all() for _, x in outputs(routed))


@EVERY
@pytest.mark.parametrize("kind", ["dense", "shared"])
def test_couplings_are_distributions_over_parents(kind: str, routing: str) -> None:
    coupling = build(kind, routing)(children(), coupling=True).coupling
    if routing in NO_DISTRIBUTION:
        assert (coupling.sum(-1) - 1).abs().max() > 1e-3
        return
    assert_near(coupling.sum(-1), 1.0)
    assert (coupling >= 0).all()


@EVERY
@LAYERS
def test_one_example_never_depends_on_its_batch(kind: str, routing: str) -> None:
    layer, u = build(kind, routing), children(5)
    whole = dict(outputs(layer(u, coupling=True, record=True)))
    for k in range(5):
        for name, x in outputs(layer(u[k : k + 1], coupling=True, record=True)):
            assert_near(x, whole[name][k : k + 1], what=name)


@EVERY
def test_permuting_children_permutes_couplings_and_leaves_poses_alone(routing: str) -> None:
    """Children that share a transform: the places of one type."""
    layer, u = build("shared", routing), children()
    order = torch.randperm(9)
    routed = layer(u, coupling=True)
    permuted = layer(u.flatten(2, 3)[:, :, order].view(u.shape), coupling=True)
    assert_near(permuted.pose, routed.pose)
    assert_near(permuted.coupling.view(3, 2, 9, 3), routed.coupling.view(3, 2, 9, 3)[:, :, order])


@EVERY
@LAYERS
def test_history_ends_with_the_result(kind: str, routing: str) -> None:
    layer, u = build(kind, routing), children()
    routed = layer(u, coupling=True, record=True)
    assert len(routed.history) == layer.routing.iterations
    assert_near(routed.history[-1].pose, routed.pose)
    assert_near(routed.history[-1].coupling, routed.coupling)
    assert layer(u).history is None
    assert_near(layer(u).pose, routed.pose)


@EVERY
@LAYERS
def test_empty_batch(kind: str, routing: str) -> None:
    layer = build(kind, routing)
    u = children(0).requires_grad_()
    routed = layer(u, coupling=True, record=True)
    assert routed.pose.shape[0] == routed.coupling.shape[0] == 0
    combination(routed).backward()
    assert u.grad.shape == u.shape
    assert layer.weight.grad is None or not layer.weight.grad.any()


@EVERY
@LAYERS
def test_everything_learned_gets_a_gradient(kind: str, routing: str) -> None:
    layer = build(kind, routing)
    u = children().requires_grad_()
    combination(layer(u)).backward()
    for name, x in [("u", u), *layer.named_parameters()]:
        assert x.grad is not None, name
        assert x.grad.isfinite().all(), name
        assert x.grad.any(), name


@EVERY
def test_backend(routing: str) -> None:
    """Votes stay unstored where a kernel twin exists; elsewhere the reference runs, and says so."""
    assert build("dense", routing).backend == ("auto" if routing in TWINS else "reference")


@EVERY
def test_stands_in_a_stack(routing: str) -> None:
    layers = [
        build("conv", routing),
        DenseCapsules(routing, in_capsules=12, in_dim=4, out_capsules=2, out_dim=3).double(),
    ]
    assert CapsuleStack(layers, concurrent=False)(children()).pose.shape == (3, 2, 3)


def test_every_kernel_belongs_to_an_algorithm() -> None:
    assert set(TWINS) <= set(ROUTING)
