"""Stacks of capsule layers: Procedure 2 of attention routing, and one layer after the other."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashcaps import ROUTING, CapsuleStack, ConvCapsules, DenseCapsules, Routed

from ..conftest import DOUBLE, assert_near
from ..layer_cases import combination


def attention_layers(**options: Any) -> nn.ModuleList:
    """Two convolutions and a class layer over 6 x 6 places."""
    matrix = {"in_dim": 4, "out_dim": 4, "pose": "matrix"} | options
    layers = nn.ModuleList(
        [
            ConvCapsules("attention", in_types=2, out_types=3, kernel=3, **matrix),
            ConvCapsules("attention", in_types=3, out_types=2, kernel=2, stride=2, **matrix),
            DenseCapsules("attention", in_capsules=2 * 2 * 2, out_capsules=5, **matrix),
        ]
    ).double()
    with torch.no_grad():
        for x in layers.parameters():
            x.add_(0.5 * torch.randn_like(x))
    return layers


def procedure_2(layers: nn.ModuleList, u: Tensor, activation: Tensor | None, iterations: int) -> Routed:
    """A sequential sweep, then every layer from the previous values of its neighbours, all of them, every time."""
    values = [Routed(u, activation)]
    for layer in layers:
        below = values[-1]
        values.append(layer.step(below.pose, None, below.activation))
    for _ in range(iterations - 1):
        previous = list(values)
        for k, layer in enumerate(layers):
            values[k + 1] = layer.step(previous[k].pose, previous[k + 1].pose, previous[k].activation)
    return values[-1]


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize(
    "options",
    [{}, {"norm": False, "scale": 1.0}, {"initial": "learned"}, {"initial": "random"}, {"activation": True}],
    ids=["plain", "A", "learned", "random", "C"],
)
def test_concurrent_iterations_follow_procedure_2(options: dict[str, Any], iterations: int) -> None:
    layers = attention_layers(**options)
    twin = copy.deepcopy(layers)
    u = torch.randn(2, 2, 6, 6, 4, **DOUBLE)
    a = torch.rand(2, 2, 6, 6, **DOUBLE) if options.get("activation") else None
    seen: set[nn.Module] = set()
    for layer in layers:
        layer.register_forward_hook(lambda layer, *_: seen.add(layer))
    routed, expected = CapsuleStack(layers, iterations)(u, a), procedure_2(twin, u, a, iterations)
    assert seen == set(layers)  # pruning and sharding change weights in such hooks
    assert_near(routed.pose, expected.pose, 1e-12)
    assert (routed.activation is None) == (expected.activation is None) == (not options.get("activation"))
    if routed.activation is not None:
        assert_near(routed.activation, expected.activation, 1e-12)
    combination(routed).backward()
    combination(expected).backward()
    for (name, x), y in zip(layers.named_parameters(), twin.parameters(), strict=True):
        assert_near(x.grad, y.grad, 1e-10, name)


def test_sequential_is_another_algorithm_from_two_iterations_on() -> None:
    """Ablation B: every layer finishes its routing before the next begins."""
    layers, u = attention_layers(), torch.randn(2, 2, 6, 6, 4, **DOUBLE)
    for iterations in (1, 2, 3):
        sequential, expected = CapsuleStack(copy.deepcopy(layers), iterations, concurrent=False)(u).pose, u
        for layer in layers:
            below, expected = expected, None
            for _ in range(iterations):
                expected = layer.step(below, expected).pose
        assert_near(sequential, expected, 1e-12)
        gap = (sequential - CapsuleStack(layers, iterations)(u).pose).abs().max().item()
        assert gap < 1e-12 if iterations == 1 else gap > 1e-3


@pytest.mark.parametrize("concurrent", [True, False])
def test_coupling_and_history_of_the_last_layer(concurrent: bool) -> None:
    stack, u = CapsuleStack(attention_layers(), 3, concurrent), torch.randn(2, 2, 6, 6, 4, **DOUBLE)
    assert stack(u).coupling is None
    routed = stack(u, coupling=True, record=True)
    assert routed.coupling.shape == (2, 8, 5)
    assert len(routed.history) == 3
    assert_near(routed.history[-1].pose, routed.pose)
    assert_near(routed.history[-1].coupling, routed.coupling)


# ---- layer by layer, any algorithm


def test_iterations_of_a_stack_default_to_those_of_its_layers() -> None:
    sizes = dict(in_capsules=3, in_dim=4, out_capsules=3, out_dim=4)

    def stack(routing: str, *iterations: int) -> CapsuleStack:
        torch.manual_seed(0)
        return CapsuleStack([DenseCapsules(routing, **sizes, iterations=n) for n in (1, 3)], *iterations).double()

    assert [x.routing.iterations for x in stack("dynamic").layers] == [1, 3]
    assert [x.routing.iterations for x in stack("dynamic", 2).layers] == [2, 2]
    u = torch.randn(2, 3, 4, **DOUBLE)
    assert_near(stack("attention")(u).pose, stack("attention", 3)(u).pose, 0.0)  # the most of them, concurrently
    assert (stack("attention")(u).pose - stack("attention", 1)(u).pose).abs().max() > 1e-3


def expected_hand_on(gives: str | None, takes: str | None, x: Tensor) -> Tensor | None:
    if gives is None or (gives == "length" and takes is None):
        return None
    if gives == "score" and takes != "score":
        return 1 / (1 + (-x).exp())
    if gives != "score" and takes == "score":
        return (x / (1 - x)).log()
    return x


@pytest.mark.parametrize(("below", "above"), list(itertools.product(ROUTING, repeat=2)))
def test_activations_are_handed_on_as_what_the_next_layer_takes(below: str, above: str) -> None:
    """By a layer itself, in a stack and in a Sequential."""
    sizes = dict(in_capsules=3, in_dim=2, out_capsules=3, out_dim=2)
    giver, taker = (DenseCapsules(name, **sizes).double() for name in (below, above))
    u = torch.randn(2, 3, 2, **DOUBLE)
    routed = giver(u)
    expected = expected_hand_on(giver.routing.output_activation, taker.routing.input_activation, routed.activation)
    pose, handed = taker.take(routed)
    assert pose is routed.pose
    assert (handed is None) == (expected is None)
    if handed is not None:
        assert_near(handed, expected)
    wanted = taker(routed.pose, expected).pose
    assert_near(CapsuleStack([giver, taker], concurrent=False)(u).pose, wanted)
    assert_near(nn.Sequential(giver, taker)(u).pose, wanted)


# ---- errors


def test_arguments_are_checked() -> None:
    dense = DenseCapsules("dynamic", in_capsules=3, in_dim=2, out_capsules=3, out_dim=2)
    for layers, iterations, concurrent, message in (
        ([], None, None, "^layers: expected at least one"),
        ([dense], 0, False, "^iterations: expected at least 1, got 0"),
        ([dense], 2, True, "^concurrent: layer 0 .*dynamic.*use concurrent=False"),
    ):
        with pytest.raises(ValueError, match=message):
            CapsuleStack(layers, iterations, concurrent)
