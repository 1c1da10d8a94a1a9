"""What every algorithm in `ROUTING` promises, whoever wrote it. A new one needs no line here."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps import ROUTING, CapsuleStack, ConvCapsules, DenseCapsules, Sizes
from flashcaps.kernels.dispatch import TWINS
from flashcaps.nn.capsules import CapsuleLayer

from ..cases import CASES, SHAPES, assert_gradients, assert_oracle
from ..conftest import DOUBLE, TOLERANCE, assert_near
from ..layer_cases import combination, outputs

EVERY = pytest.mark.parametrize("routing", list(ROUTING))
LAYERS = pytest.mark.parametrize("kind", ["dense", "shared", "conv"])


# ---- routing functions, with every option


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_a_function_agrees_with_its_oracle(name: str, shape: tuple[int, ...]) -> None:
    assert_oracle(CASES[name], CASES[name].draw(*shape))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2], SHAPES[-1]])
@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].options.get("detach")])
def test_gradients_of_a_function(name: str, shape: tuple[int, ...]) -> None:
    assert_gradients(CASES[name], CASES[name].draw(*shape))


# ---- declarations, and layers that keep to them


@EVERY
def test_declarations(routing: str) -> None:
    kind = ROUTING[routing]
    assert kind.input_activation in (None, "probability", "score")
    assert kind.output_activation in (None, "length", "probability", "score")
    assert kind.loss in ("margin", "spread", "cross_entropy")
    assert kind.over in ("types", "positions")
    assert isinstance(kind.title, str)
    assert callable(kind.function)
    layer = ConvCapsules(routing, in_types=2, in_dim=3, out_types=3, out_dim=4, kernel=2)
    assert layer.over == kind.over
    assert (layer.bias is not None) == kind.vote_bias
    assert (layer.memory is None) == (kind().memory() is None)


@EVERY
def test_a_layer_holds_what_its_algorithm_declares(routing: str) -> None:
    layer = DenseCapsules(routing, in_capsules=7, in_dim=3, out_capsules=5, out_dim=2)
    declared = ROUTING[routing]().learned(Sizes(7, 5, 2))
    state = dict(layer.named_buffers())
    assert layer.backend == ("auto" if routing in TWINS else "reference")  # without a twin, the reference
    assert {*layer.learned, *state} == set(declared)
    for name, spec in declared.items():
        held = (state if spec.state else layer.learned)[name]
        assert held.shape == spec.shape
        assert spec.random or (held == spec.start).all()
    transforms = 7 * 5 * 3 * 2 + (7 * 5 * 2 if ROUTING[routing].vote_bias else 0)
    learned = sum(x.numel() for x in layer.learned.values())
    assert sum(x.numel() for x in layer.parameters()) == transforms + learned


@EVERY
@LAYERS
def test_the_activation_is_what_the_algorithm_declares(kind: str, routing: str) -> None:
    layer = build(kind, routing)
    routed, declared = layer(children()), ROUTING[routing].output_activation
    assert routed.kind == declared
    assert (routed.activation is None) == (declared is None)
    if declared == "length":
        assert_near(routed.activation, routed.pose.norm(dim=-1))
    elif declared == "probability":
        assert ((routed.activation >= 0) & (routed.activation <= 1)).all()


@EVERY
@LAYERS
def test_single_steps_are_the_iterations_of_a_stepwise_algorithm(kind: str, routing: str) -> None:
    layer, u, pose = build(kind, routing), children(), None
    if not ROUTING[routing].stepwise:
        with pytest.raises(TypeError, match=rf"^step: {routing} routing has no single step"):
            layer.step(u)
        return
    for iterations in (1, 2):
        layer.set_iterations(iterations)
        pose = layer.step(u, pose).pose
        assert_near(pose, layer(u).pose)


@pytest.mark.parametrize("name", TWINS)
def test_a_kernel_belongs_to_an_algorithm_and_takes_its_arguments(name: str) -> None:
    twin, reference = TWINS[name], inspect.signature(ROUTING[name].function).parameters
    parameters = set(inspect.signature(twin.function).parameters)
    assert set(reference) - {"mask"} | {"coupling"} <= parameters
    assert ("triton" in parameters) == (twin.family in ("attend", "fit"))
    assert ("vote_bias" in parameters) == twin.adds_bias
    assert set(twin.reads_images) <= {ROUTING[name].input_activation}


# ---- layers


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
def test_shapes_and_dtypes(kind: str, routing: str) -> None:
    places = (2, 2) if kind == "conv" else ()
    for dtype in TOLERANCE:
        routed = build(kind, routing, dtype)(children().to(dtype), coupling=True, record=True)
        assert (routed.pose.shape, routed.pose.dtype) == ((3, 3, *places, 4), dtype)
        assert routed.coupling.shape == (3, 8 if kind == "conv" else 18, 3, *places)
        if routed.activation is not None:
            assert (routed.activation.shape, routed.activation.dtype) == ((3, 3, *places), dtype)
        if routed.variance is not None:
            precise = torch.float64 if dtype == torch.float64 else torch.float32
            assert (routed.variance.shape, routed.variance.dtype) == (routed.pose.shape, precise)
        assert all(step.pose.dtype == dtype for step in routed.history)
        assert all(x.isfinite().all() for _, x in outputs(routed))


@EVERY
@pytest.mark.parametrize("kind", ["dense", "shared"])
def test_couplings_are_distributions_over_parents(kind: str, routing: str) -> None:
    coupling = build(kind, routing)(children(), coupling=True).coupling
    if ROUTING[routing]().memory() is not None:  # signed coefficients that climb an objective of their own
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
    for step in routed.history:
        assert (step.coupling.shape, step.pose.shape) == (routed.coupling.shape, routed.pose.shape)
        assert step.activation is None or step.activation.shape == routed.activation.shape
    plain = layer(u)
    assert plain.coupling is plain.history is None
    assert_near(plain.pose, routed.pose)


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
def test_stands_in_a_stack(routing: str) -> None:
    layers = [
        build("conv", routing),
        DenseCapsules(routing, in_capsules=12, in_dim=4, out_capsules=2, out_dim=3).double(),
    ]
    stack = CapsuleStack(layers)
    assert stack.concurrent is ROUTING[routing].stepwise
    assert stack(children()).pose.shape == (3, 2, 3)
