"""Discriminative routing's own training step, in alternation with the optimiser's."""

import copy
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev
from torch.utils.checkpoint import checkpoint

from flashcaps import CapsuleStack, ConvCapsules, DenseCapsules, ascend_coefficients
from flashcaps.functional import discriminative_update, margin_loss
from flashcaps.training.distributed import Workers

from ..conftest import DOUBLE, assert_near
from ..faults.test_machines import on_ranks

STEP = {"rate": 0.01, "strength": 0.3}
LABELS = torch.tensor([2, 0, 2, 1])


def class_layer(backend: str = "matrix", **more: Any) -> DenseCapsules:
    sizes = dict(in_capsules=5, in_dim=3, out_capsules=3, out_dim=4)
    layer = DenseCapsules("discriminative", backend=backend, **(sizes | STEP | more)).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.coefficients)
    return layer


def hidden_and_class(backend: str = "matrix", **more: Any) -> CapsuleStack:
    """A convolution (coefficients shared over places), a dense layer and the class layer."""
    rest = {"backend": backend} | STEP | more
    stack = CapsuleStack(
        [
            ConvCapsules("discriminative", in_types=1, in_dim=3, out_types=2, out_dim=3, kernel=2, **rest),
            DenseCapsules("discriminative", in_capsules=8, in_dim=3, out_capsules=4, out_dim=3, **rest),
            DenseCapsules("discriminative", in_capsules=4, in_dim=3, out_capsules=3, out_dim=4, **rest),
        ],
        concurrent=False,
    ).double()
    for layer in stack.layers:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.coefficients)
    return stack


@pytest.mark.parametrize(("backend", "penalty"), [("reference", "l2"), ("matrix", "l2"), ("matrix", "l1")])
def test_class_layer_takes_one_step_of_the_printed_equation(backend: str, penalty: str) -> None:
    layer, u = class_layer(backend, penalty=penalty), torch.randn(4, 5, 3, **DOUBLE)
    before = layer.coefficients.clone()
    expected = discriminative_update(before, layer.votes(u).detach(), LABELS, **STEP, penalty=penalty)
    for labels in (LABELS, nn.functional.one_hot(LABELS, 3)):
        layer.coefficients.copy_(before)
        layer(u)
        ascend_coefficients(layer, labels)
        assert_near(layer.coefficients, expected)
    assert not torch.equal(layer.coefficients, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_coefficients_of_half_precision_rise_by_what_only_fp32_can_hold(dtype: torch.dtype) -> None:
    half = class_layer(rate=1e-6).to(dtype)
    full, start = copy.deepcopy(half).float(), half.coefficients.clone()
    for scale in (1, 100):  # the sums of 100 overflow in fp16
        u = (scale * torch.randn(4, 5, 3)).to(dtype)
        assert (half(u).pose.dtype, full(u.float()).pose.dtype) == (dtype, torch.float32)
        for layer in (half, full):
            ascend_coefficients(layer, LABELS)
        assert (half.coefficients - start).abs().max() > 1e-6
        assert_near(half.coefficients, full.coefficients, 1e-7)


@pytest.mark.parametrize("labels", [torch.tensor([0, 1]), torch.zeros(4, 2, dtype=torch.long), torch.tensor(1)])
def test_labels_are_checked(labels: Tensor) -> None:
    model = hidden_and_class()
    model(torch.randn(4, 1, 3, 3, 3, **DOUBLE))
    with pytest.raises(ValueError, match=r"^labels: expected"):
        ascend_coefficients(model, labels)


def test_children_that_share_a_transform_share_a_coefficient() -> None:
    layer = class_layer(in_capsules=2, shared=True)
    assert layer.coefficients.shape == (2, 3)
    u = torch.randn(4, 2, 3, 1, 3, **DOUBLE)
    before = layer.coefficients.clone()
    layer(u)
    ascend_coefficients(layer, LABELS)
    separate = class_layer(in_capsules=6, strength=0.0)
    with torch.no_grad():
        separate.weight.copy_(layer.weight.repeat_interleave(3, layer.weight.shape.index(2)))
        separate.coefficients.copy_(before.repeat_interleave(3, 0))
    separate(u)
    ascend_coefficients(separate, LABELS)
    ascent = (separate.coefficients - before.repeat_interleave(3, 0)).view(2, 3, 3).sum(1)
    penalty = STEP["rate"] * STEP["strength"] * 4 * before
    assert_near(layer.coefficients, before + ascent - penalty)


@pytest.mark.parametrize("backend", ["reference", "matrix"])
def test_hidden_layers_follow_by_the_chain_rule(backend: str) -> None:
    """Against finite differences of the class layer's objective by every coefficient."""
    model, u = hidden_and_class(backend, strength=0.0), torch.randn(4, 1, 3, 3, 3, **DOUBLE)
    states = [layer.coefficients for layer in model.layers]
    before = [b.clone() for b in states]

    def objective() -> float:
        with torch.no_grad():
            hidden = model.layers[1](model.layers[0](u).pose).pose
            v = torch.einsum("ij,bijd->bjd", states[2], model.layers[2].votes(hidden))
            return ((2 * nn.functional.one_hot(LABELS, 3) - 1) * v.square().sum(-1)).sum().item()

    slopes, h = [], 1e-5
    for b in states:
        slope = torch.zeros_like(b)
        for k in range(b.numel()):
            ends = []
            for sign in (1, -1):
                b.view(-1)[k] += sign * h
                ends.append(objective())
                b.view(-1)[k] -= sign * h
            slope.view(-1)[k] = (ends[0] - ends[1]) / (2 * h)
        slopes.append(slope)
    model(u)
    ascend_coefficients(model, LABELS)
    for b, start, slope in zip(states, before, slopes, strict=True):
        assert_near(b, start + STEP["rate"] * slope, 1e-7)


def train_step(model: nn.Module, u: Tensor, order: str) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = margin_loss(model(u).activation, LABELS)
    if order == "before backward":
        ascend_coefficients(model, LABELS)
    loss.backward(retain_graph=order != "before backward")
    if order == "after backward":
        ascend_coefficients(model, LABELS)
    optimiser.step()
    if order == "after step":
        ascend_coefficients(model, LABELS)


@pytest.mark.parametrize(("order", "checkpointed"), [("after backward", False), ("before backward", True)])
def test_neither_order_nor_checkpoints_matter(order: str, checkpointed: bool, recwarn: pytest.WarningsRecorder) -> None:
    """The gradient of the weights is the one of the coefficients the forward pass used, moved since or not."""
    plain, u = hidden_and_class(), torch.randn(4, 1, 3, 3, 3, **DOUBLE)
    other = copy.deepcopy(plain)
    for layer in other.layers if checkpointed else ():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    for _ in range(2):
        train_step(plain, u, "before backward")
        train_step(other, u, order)
    for key, x in plain.state_dict().items():
        assert_near(other.state_dict()[key], x, 1e-14, key)
    assert not [w for w in recwarn if "coefficients" in str(w.message)]


def test_weights_that_moved_on_are_noticed() -> None:
    """The votes of the forward pass are gone with its weights: an error, not a step on other votes."""
    with pytest.raises(RuntimeError, match="before the optimiser"):
        train_step(class_layer(), torch.randn(4, 5, 3, **DOUBLE), "after step")


# ---- bounded


def solved_batch(**more: Any) -> tuple[CapsuleStack, Tensor]:
    """Four images, of which all classes outside are shorter than 0.1 and the one inside is longer than 0.9."""
    stack, u = hidden_and_class(bounded=True, **more), torch.randn(4, 1, 3, 3, 3, **DOUBLE)
    with torch.no_grad():
        stack.layers[-1].weight.mul_(torch.tensor([1e3, 1e-3, 1e-3]).view(3, 1, 1, 1))  # every image is of class 0
    return stack, u


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_a_solved_batch_moves_nothing_but_by_the_penalty(strength: float) -> None:
    model, u = solved_batch(strength=strength)
    labels = torch.zeros(4, dtype=torch.long)
    before = [layer.coefficients.clone() for layer in model.layers]
    assert margin_loss(model(u).activation, labels) == 0
    ascend_coefficients(model, labels)
    for layer, b in zip(model.layers, before, strict=True):
        assert_near(layer.coefficients, b - STEP["rate"] * strength * 4 * b, 1e-15)
    model(u)
    ascend_coefficients(model, labels + 1)  # another class: every layer moves
    assert all((layer.coefficients - b).abs().max() > 0.01 for layer, b in zip(model.layers, before, strict=True))


def test_images_whose_margins_are_met_do_not_count() -> None:
    """Hidden layers too take the step of the others, in which every margin is missed."""
    (model, u), labels = solved_batch(strength=0.0), torch.tensor([0, 1, 0, 1])
    missed, twin = labels == 1, copy.deepcopy(model)
    for layer in twin.layers:
        layer.routing = dataclasses.replace(layer.routing, bounded=False)
    twin(u[missed])
    # of an image of class 1, class 2 is short already: its coefficients, and what they would send below, stay
    ascend_coefficients(twin, torch.tensor([[0.0, 1.0, 0.5]] * 2))
    model(u)
    ascend_coefficients(model, labels)
    for layer, other in zip(model.layers, twin.layers, strict=True):
        assert_near(layer.coefficients, other.coefficients)


@pytest.mark.parametrize("pace", [0.25, torch.tensor(0.25, **DOUBLE)])
def test_pace_scales_the_step_of_bounded_layers_alone(pace: float | Tensor) -> None:
    u = torch.randn(4, 5, 3, **DOUBLE)
    for bounded in (True, False):
        start = class_layer(bounded=bounded)
        full, slow = copy.deepcopy(start), copy.deepcopy(start)
        for layer, given in ((full, 1.0), (slow, pace)):
            layer(u)
            ascend_coefficients(layer, LABELS, given)
        step = full.coefficients - start.coefficients
        assert step.abs().max() > 1e-3
        assert_near(slow.coefficients - start.coefficients, (0.25 if bounded else 1.0) * step)
    with pytest.raises(ValueError, match=r"^pace: "):
        ascend_coefficients(start, LABELS, float("nan"))


# ---- state


def test_every_step_needs_its_own_forward_pass_in_training() -> None:
    layer, u = class_layer(), torch.randn(4, 5, 3, **DOUBLE)
    layer(u)
    ascend_coefficients(layer, LABELS)
    with pytest.raises(RuntimeError, match=r"^ascend_coefficients: no forward pass"):
        ascend_coefficients(layer, LABELS)
    before = layer.coefficients.clone()
    layer.eval()(u)
    with pytest.raises(RuntimeError, match=r"^ascend_coefficients: no forward pass in training mode"):
        ascend_coefficients(layer, LABELS)
    assert torch.equal(layer.coefficients, before)
    assert not layer.coefficients.requires_grad


@pytest.mark.parametrize("between", ["evaluation", "no_grad", "jacrev"])
def test_a_look_at_other_data_in_between_changes_nothing(between: str) -> None:
    """Nor in hidden layers, whose coefficients need a gradient."""
    model, u, other = hidden_and_class("auto"), *torch.randn(2, 4, 1, 3, 3, 3, **DOUBLE)
    twin = copy.deepcopy(model)
    model(u)
    if between == "evaluation":
        model.eval()(other)
        model.train()
    elif between == "no_grad":
        with torch.no_grad():
            model(other)
    else:
        assert jacrev(lambda x: model(x).pose)(other).shape == (4, 3, 4, *other.shape)
    ascend_coefficients(model, LABELS)
    twin(u)
    ascend_coefficients(twin, LABELS)
    for key, x in twin.state_dict().items():
        assert torch.equal(model.state_dict()[key], x), key


# ---- several ranks


def ascended(workers: Workers) -> dict[str, dict[str, Tensor]]:
    """What each model holds after a step on this rank's part of a batch."""
    torch.manual_seed(0)
    given = {
        "class": (class_layer(), torch.randn(4, 5, 3, **DOUBLE), LABELS),
        "hidden": (hidden_and_class(), torch.randn(4, 1, 3, 3, 3, **DOUBLE), LABELS),
        "bounded": (*solved_batch(), torch.tensor([0, 1, 0, 2])),
    }
    for model, u, labels in given.values():
        model(u.chunk(workers.world)[workers.rank])
        ascend_coefficients(model, labels.chunk(workers.world)[workers.rank])
    return {name: model.state_dict() for name, (model, _, _) in given.items()}


def test_two_ranks_take_the_step_of_the_whole_batch(tmp_path: Path) -> None:
    alone, (first, second) = ascended(Workers(torch.device("cpu"))), on_ranks(ascended, tmp_path)
    for name, state in alone.items():
        for key, x in state.items():
            assert torch.equal(first[name][key], second[name][key]), key
            assert_near(first[name][key], x, 1e-12, key)
