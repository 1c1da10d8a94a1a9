"""Inverted dot-product attention routing against one step of Procedure 1 in plain loops."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from flashcaps.functional import attention_routing
from flashcaps.routing import Sizes
from flashcaps.routing.attention import Attention

from ..cases import CASES, SHAPES, assert_gradients, assert_routed, lists, named
from ..conftest import assert_near
from . import oracles

B, I, J, D = 2, 4, 3, 4


def draw(*shape: int) -> dict[str, Tensor]:
    """votes, pose, weight, bias, activation, beta_u and beta_a."""
    return CASES["attention, activations"].draw(*(shape or (B, I, J, D)))


def pick(tensors: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: tensors[name] for name in names}


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize(("given", "norm"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_oracle(shape: tuple[int, ...], given: bool, norm: bool, scale: float) -> None:
    tensors = pick(draw(*shape), "votes", *(["pose"] if given else []))
    routed = attention_routing(**tensors, scale=scale, norm=norm, record=True)
    assert_routed(routed, oracles.attention(**lists(tensors), scale=scale, norm=norm))


@pytest.mark.parametrize("names", [("weight",), ("bias",), ("weight", "bias")])
def test_agrees_with_oracle_with_learned_norm(names: tuple[str, ...]) -> None:
    tensors = pick(draw(), "votes", "pose", *names)
    assert_routed(attention_routing(**tensors), oracles.attention(**lists(tensors)))


@pytest.mark.parametrize("per_element", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_oracle_with_activations(
    shape: tuple[int, ...], given: bool, gated: bool, per_element: bool
) -> None:
    tensors = draw(*shape)
    beta_u, beta_a = tensors["beta_u"], tensors["beta_a"]
    if per_element:
        beta_u = torch.randn(shape[2:], dtype=torch.float64)
    names = ["votes"] + ["pose"] * given + ["activation"] * gated
    arguments = pick(tensors, *names)
    routed = attention_routing(**arguments, beta_u=beta_u, beta_a=beta_a, scale=0.5, record=True)
    assert_routed(routed, oracles.attention(**lists(arguments), scale=0.5, betas=(beta_u.tolist(), beta_a.tolist())))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", named("attention"))
def test_gradients(name: str, shape: tuple[int, ...]) -> None:
    assert_gradients(CASES[name], CASES[name].draw(*shape))


def test_softmax_is_over_parents_not_children() -> None:
    coupling = attention_routing(**pick(draw(), "votes", "pose")).coupling
    assert_near(coupling.sum(2), 1.0)
    assert (coupling.sum(1) - 1).abs().max() > 0.1


def test_agreement_is_unscaled_by_default_and_scale_multiplies_it() -> None:
    tensors = pick(draw(), "votes", "pose")
    pose, votes = tensors["pose"][0].tolist(), tensors["votes"][0].tolist()
    by_hand = [[oracles.dot(p, v) for p, v in zip(pose, child, strict=True)] for child in votes]
    assert_near(attention_routing(**tensors).coupling[0], [oracles.softmax(row) for row in by_hand])
    halved = [oracles.softmax([x * D**-0.5 for x in row]) for row in by_hand]
    assert_near(attention_routing(**tensors, scale=D**-0.5).coupling[0], halved)


def test_first_step_is_uniform_and_equals_a_pose_of_zero() -> None:
    tensors = pick(draw(), "votes")
    first = attention_routing(**tensors)
    assert_near(first.coupling, 1 / J)
    assert_near(first.pose, attention_routing(**tensors, pose=torch.zeros(B, J, D, dtype=torch.float64)).pose, 0.0)


def test_without_norm_the_pose_is_the_weighted_sum() -> None:
    tensors = pick(draw(), "votes", "pose")
    routed = attention_routing(**tensors, norm=False)
    assert_near(routed.pose, (routed.coupling[..., None] * tensors["votes"]).sum(1))


def test_norm_is_over_one_pose() -> None:
    """Mean 0 and variance 1 for every parent of every example, not over parents or examples."""
    pose = attention_routing(**pick(draw(2, 6, 3, 32), "votes", "pose")).pose
    assert_near(pose.mean(2), 0.0)
    assert_near(pose.var(2, correction=0), 1.0, 1e-3)


def test_activation_multiplies_the_votes_of_a_child() -> None:
    tensors = draw()
    gated = tensors["votes"] * tensors["activation"][..., None, None]
    rest = pick(tensors, "pose", "beta_u", "beta_a", "weight", "bias")
    with_activation = attention_routing(**pick(tensors, "votes", "activation"), **rest)
    multiplied = attention_routing(gated, **rest)
    for name in ("pose", "activation", "coupling", "variance"):
        assert_near(getattr(with_activation, name), getattr(multiplied, name), what=name)
    silent = attention_routing(tensors["votes"], activation=torch.zeros(B, I, dtype=torch.float64), **rest)
    assert_near(silent.pose, tensors["bias"].expand(B, J, D))


def test_without_betas_there_is_no_activation() -> None:
    routed = attention_routing(**pick(draw(), "votes", "pose"))
    assert routed.activation is None
    assert routed.variance is None


def test_algorithm_repeats_the_step_and_scales_as_the_code_does() -> None:
    tensors = draw()
    learned = pick(tensors, "weight", "bias")
    routed = Attention(iterations=3).run(attention_routing, tensors["votes"], None, dict(learned), record=True)
    pose = None
    for _ in range(3):
        expected = oracles.attention(tensors["votes"].tolist(), pose, scale=D**-0.5, **lists(learned))
        pose = expected.pose
    assert_near(routed.pose, pose)
    assert_near(routed.coupling, expected.coupling)
    assert len(routed.history) == 3
    assert_near(routed.history[0].coupling, 1 / J)


def test_algorithm_starts_from_the_initial_pose_and_leaves_its_tensors_alone() -> None:
    tensors = draw()
    learned = pick(tensors, "weight", "bias") | {"initial": torch.randn(J, D, dtype=torch.float64)}
    start = [learned["initial"].tolist()] * B
    expected = oracles.attention(tensors["votes"].tolist(), start, scale=1.0, **lists(pick(tensors, "weight", "bias")))
    algorithm = Attention(initial="learned", scale=1.0)
    for _ in range(2):
        routed = algorithm.run(attention_routing, tensors["votes"], None, learned)
        assert_near(routed.pose, expected.pose)


def test_declares_what_it_learns() -> None:
    sizes = Sizes(6, 3, 16)
    assert {k: (x.shape, x.start) for k, x in Attention().learned(sizes).items()} == {
        "weight": ((16,), 1.0),
        "bias": ((16,), 0.0),
    }
    assert Attention(norm=False).learned(sizes) == {}
    assert {k: x.shape for k, x in Attention(norm=False, activation=True).learned(sizes).items()} == {
        "beta_u": (3,),
        "beta_a": (3,),
    }
    initial = Attention(norm=False, initial="learned").learned(sizes)["initial"]
    assert (initial.shape, initial.start, initial.state, initial.random) == ((3, 16), 0.0, False, False)
    assert Attention(norm=False, initial="random").learned(sizes)["initial"].random
    assert Attention().input_activation is Attention().output_activation is None
    assert Attention(activation=True).input_activation == Attention(activation=True).output_activation == "probability"
