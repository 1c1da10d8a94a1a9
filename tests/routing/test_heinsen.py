"""Heinsen routing: infinite scores, by-hand values. Values against the oracle: test_contract.py."""

import pytest
import torch
from torch import Tensor

from flashcaps.functional import heinsen_routing
from flashcaps.routing import Routed, Sizes
from flashcaps.routing.heinsen import Heinsen

from ..cases import CASES, Case, assert_gradients, assert_oracle, assert_routed, backward, lists
from ..conftest import TOLERANCE, assert_near
from . import oracles

B, I, J, D = 2, 4, 3, 2
INF = float("inf")


def draw(*shape: int) -> dict[str, Tensor]:
    return CASES["heinsen"].draw(*(shape or (B, I, J, D)))


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_agrees_with_oracle_with_infinite_scores(eps: float) -> None:
    tensors = draw(B, 6, J, D)
    tensors["score"][0, :2] = -INF
    tensors["score"][0, 4] = INF
    tensors["score"][1] = INF
    assert_oracle(CASES["heinsen"], tensors, eps=eps)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_a_fully_masked_example_has_finite_values_and_gradients(dtype: torch.dtype) -> None:
    case = CASES["heinsen"]
    tensors = case.draw(B, I, J, D, dtype=dtype)
    tensors["score"][1] = -INF
    routed, gradients = backward(case, tensors, eps=1e-5)
    assert all(x.isfinite().all() for x in (*routed[:4], *gradients.values()))
    assert_near(routed.pose[1], 0.0, 0.0)
    assert_near(routed.activation[1], 0.0, 0.0)
    first = {name: x[:1] if "b" in case.axes[name] else x for name, x in tensors.items()}
    alone, _ = backward(case, first, eps=1e-5)
    assert_near(routed.pose[:1], alone.pose)


@pytest.mark.parametrize("score", [-INF, INF])
def test_gradients_with_a_mask(score: float) -> None:
    """By everything but the score, which has no finite difference there."""
    tensors = draw()
    masked = tensors.pop("score")
    masked[0, 1] = masked[0, 3] = score
    masked[1] = -INF

    def function(**arguments: Tensor) -> Routed:
        return heinsen_routing(score=masked, **arguments)

    assert_gradients(Case(function, oracles.heinsen, {}, {"eps": 0.05}), tensors)


def test_scores_are_logits_on_both_sides() -> None:
    """One child of score 0 is half there: with beta_use = 3 and one parent the score is 1.5, not a probability."""
    one = torch.ones(1, 1, dtype=torch.float64)
    for beta in (3.0, -3.0):
        routed = heinsen_routing(one[..., None, None], torch.zeros_like(one), beta_use=beta * one, beta_ignore=one)
        assert_near(routed.activation, [[beta / 2]])


@pytest.mark.parametrize("tied", [False, True])
def test_algorithm_ties_betas_and_starts_one_to_one(tied: bool) -> None:
    tensors = draw(1, 3, 3, 2)
    learned = {name: tensors.pop(name) for name in ("beta_use", "beta_ignore")}
    betas = learned | ({"beta_ignore": learned["beta_use"]} if tied else {})
    learned = {name: learned[name] for name in Heinsen(tied=tied).learned(Sizes(3, 3, 2))}
    routed = Heinsen(tied=tied, eps=0.3, one_to_one=2.0).run(heinsen_routing, *tensors.values(), learned)
    start = [[2.0 if i == j else 0.0 for j in range(3)] for i in range(3)]
    assert_routed(routed, oracles.heinsen(**lists(tensors | betas), eps=0.3, start=start))
    with pytest.raises(ValueError, match=r"^one_to_one: expected as many parents as children, got 3 and 4"):
        Heinsen(one_to_one=1.0).run(heinsen_routing, draw()["votes"], draw()["score"], learned)
