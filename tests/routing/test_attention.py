"""Inverted dot-product attention routing: several steps, ablation C. Values: test_contract.py."""

import pytest
import torch
from torch import Tensor

from flashcaps.functional import attention_routing
from flashcaps.routing.attention import Attention

from ..cases import CASES, assert_oracle, lists
from ..conftest import assert_near
from . import oracles

B, I, J, D = 2, 4, 3, 4


def draw() -> dict[str, Tensor]:
    """votes, pose, weight, bias, activation, beta_u and beta_a."""
    return CASES["attention, activations"].draw(B, I, J, D)


def pick(tensors: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: tensors[name] for name in names}


@pytest.mark.parametrize("names", [("beta_a",), ("beta_a", "activation"), ("pose", "weight"), ("pose", "bias")])
def test_agrees_with_oracle_where_some_are_given(names: tuple[str, ...]) -> None:
    """Ablation C in the first step with one beta_u per pose element, with and without activations of the children;
    scale or shift alone."""
    tensors = pick(draw(), "votes", *names)
    if "beta_a" in names:
        tensors["beta_u"] = torch.randn(J, D, dtype=torch.float64)
    assert_oracle(CASES["attention"], tensors)


def test_algorithm_repeats_the_step_and_scales_as_the_code_does() -> None:
    tensors = draw()
    learned = pick(tensors, "weight", "bias")
    routed = Attention(iterations=3).run(attention_routing, tensors["votes"], None, dict(learned), record=True)
    pose = None
    for _ in range(3):
        expected = oracles.attention(tensors["votes"].tolist(), pose=pose, scale=D**-0.5, **lists(learned))
        pose = expected.pose
    assert_near(routed.pose, pose)
    assert_near(routed.coupling, expected.coupling)
    assert len(routed.history) == 3
    assert_near(routed.history[0].coupling, 1 / J)


def test_algorithm_starts_from_the_initial_pose_and_leaves_its_tensors_alone() -> None:
    tensors = draw()
    learned = pick(tensors, "weight", "bias") | {"initial": torch.randn(J, D, dtype=torch.float64)}
    start = {"pose": [learned["initial"].tolist()] * B, "scale": 1.0}
    expected = oracles.attention(**lists(pick(tensors, "votes", "weight", "bias")), **start)
    algorithm = Attention(initial="learned", scale=1.0)
    for _ in range(2):
        routed = algorithm.run(attention_routing, tensors["votes"], None, learned)
        assert_near(routed.pose, expected.pose)
