"""Heinsen routing against Algorithm 1 in plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashcaps.functional import heinsen_routing
from flashcaps.routing import Sizes
from flashcaps.routing.heinsen import Heinsen

from ..cases import CASES, SHAPES, Case, assert_gradients, assert_routed, backward, lists, named
from ..conftest import assert_near
from . import oracles

B, I, J, D = 2, 4, 3, 2
INF = float("inf")


def draw(name: str = "heinsen", shape: tuple[int, ...] = (B, I, J, D)) -> dict[str, Tensor]:
    return CASES[name].draw(*shape)


def check(tensors: dict[str, Tensor], **options) -> None:
    assert_routed(heinsen_routing(**tensors, record=True, **options), oracles.heinsen(**lists(tensors), **options))


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_oracle(shape: tuple[int, ...], eps: float, iterations: int) -> None:
    check(draw(shape=shape), eps=eps, iterations=iterations)


@pytest.mark.parametrize("eps", [1e-5, 0.3])
@pytest.mark.parametrize("name", ["heinsen, any input", "heinsen, start"])
def test_agrees_with_oracle_with_shared_betas_and_start(name: str, eps: float) -> None:
    check(draw(name), eps=eps)


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_agrees_with_oracle_with_infinite_scores(eps: float) -> None:
    tensors = draw(shape=(B, 6, J, D))
    tensors["score"][0, :2] = -INF
    tensors["score"][0, 4] = INF
    tensors["score"][1] = INF
    check(tensors, eps=eps)


def test_agrees_with_oracle_on_a_fully_masked_example() -> None:
    tensors = draw()
    tensors["score"][1] = -INF
    check(tensors, eps=0.3)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_fully_masked_example_has_finite_values_and_gradients(dtype: torch.dtype, iterations: int) -> None:
    case = CASES["heinsen"]
    tensors = case.draw(B, I, J, D, dtype=dtype)
    tensors["score"][1] = -INF
    routed, gradients = backward(case, tensors, iterations=iterations, eps=1e-5)
    assert all(x.isfinite().all() for x in (*routed[:4], *gradients.values()))
    assert_near(routed.pose[1], 0.0, 0.0)
    assert_near(routed.activation[1], 0.0, 0.0)
    alone, _ = backward(case, case.select(tensors, "b", torch.tensor([0])), iterations=iterations, eps=1e-5)
    assert_near(routed.pose[:1], alone.pose)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", named("heinsen"))
def test_gradients(name: str, shape: tuple[int, ...]) -> None:
    assert_gradients(CASES[name], CASES[name].draw(*shape))


@pytest.mark.parametrize("score", [-INF, INF])
def test_gradients_with_a_mask(score: float) -> None:
    """By everything but the score, which has no finite difference there."""
    tensors = draw()
    masked = tensors.pop("score")
    masked[0, 1] = masked[0, 3] = score
    masked[1] = -INF

    def function(**arguments: Tensor):
        return heinsen_routing(score=masked, **arguments)

    assert_gradients(Case(function, {}, {"eps": 0.05}), tensors)


def test_scores_are_logits_on_both_sides() -> None:
    """One child of score 0 is half there: with beta_use = 3 and one parent the score is 1.5, not a probability."""
    one = torch.ones(1, 1, dtype=torch.float64)
    routed = heinsen_routing(one[..., None, None], torch.zeros_like(one), beta_use=3 * one, beta_ignore=one)
    assert_near(routed.activation, [[1.5]])
    assert_near(-heinsen_routing(one[..., None, None], one - 1, beta_use=-3 * one, beta_ignore=one).activation, [[1.5]])


def test_a_masked_child_is_an_absent_child() -> None:
    tensors = draw(shape=(B, 5, J, D))
    tensors["score"][:, 2] = -INF
    keep = torch.tensor([0, 1, 3, 4])
    masked, absent = heinsen_routing(**tensors), heinsen_routing(**CASES["heinsen"].select(tensors, "i", keep))
    for name in ("pose", "activation", "variance"):
        assert_near(getattr(masked, name), getattr(absent, name), what=name)


def test_e_step_comes_before_m_step_and_not_after_the_last() -> None:
    """The coupling returned is the one the last pose was made with; the first is uniform."""
    tensors = draw()
    assert_near(heinsen_routing(**tensors, iterations=1).coupling, 1 / J)
    routed = heinsen_routing(**tensors, iterations=3, eps=0.0)
    use = routed.coupling * tensors["score"].sigmoid()[..., None]
    assert_near(routed.pose, (use[..., None] * tensors["votes"]).sum(1) / use.sum(1)[..., None])


def test_densities_are_never_multiplied_out() -> None:
    tensors = CASES["heinsen"].draw(1, 6, 3, 64, dtype=torch.float32, size=50.0)
    routed, gradients = backward(CASES["heinsen"], tensors, eps=1e-5)
    assert_near(routed.coupling.sum(2), 1.0)
    assert all(x.isfinite().all() for x in (*routed[:4], *gradients.values()))


def test_betas_of_zero_give_scores_of_zero() -> None:
    """Both betas start at 0: the score says nothing yet, and the votes get no gradient from it."""
    tensors = draw() | {"beta_use": torch.zeros(I, J), "beta_ignore": torch.zeros(I, J)}
    tensors["votes"].requires_grad_()
    score = heinsen_routing(**tensors).activation
    assert_near(score, 0.0, 0.0)
    score.sum().backward()
    assert_near(tensors["votes"].grad, 0.0, 0.0)


def test_tied_betas_add_their_gradients() -> None:
    tensors = draw()
    tied = tensors["beta_use"].clone().requires_grad_()
    use, ignore = (tensors["beta_use"].clone().requires_grad_() for _ in range(2))
    rest = {k: tensors[k] for k in ("votes", "score")}
    heinsen_routing(**rest, beta_use=tied, beta_ignore=tied).activation.square().sum().backward()
    heinsen_routing(**rest, beta_use=use, beta_ignore=ignore).activation.square().sum().backward()
    assert_near(tied.grad, use.grad + ignore.grad)


def _alike() -> dict[str, Tensor]:
    """A variable number of parents, taken literally: every parent gets the same votes and betas."""
    tensors = draw("heinsen, any input", (1, 3, 3, 2))
    tensors["votes"] = tensors["votes"][:, :, :1].expand(1, 3, 3, 2)
    return tensors | {k: tensors[k][:1].expand(3) for k in ("beta_use", "beta_ignore")}


def test_variable_outputs_taken_literally_are_identical() -> None:
    routed = heinsen_routing(**_alike())
    assert_near(routed.pose, routed.pose[:, :1].expand(1, 3, 2))
    assert_near(routed.activation, routed.activation[:, :1].expand(1, 3))


def test_a_start_that_is_nearly_one_to_one_breaks_the_symmetry() -> None:
    routed = heinsen_routing(**_alike(), start=2.0 * torch.eye(3, dtype=torch.float64), iterations=2)
    assert (routed.pose[:, 0] - routed.pose[:, 1]).abs().max() > 1e-2


def test_algorithm_ties_betas_and_starts_one_to_one() -> None:
    tensors = draw(shape=(1, 3, 3, 2))
    beta, rest = tensors["beta_use"], (tensors["votes"], tensors["score"])
    routed = Heinsen(tied=True, eps=0.3, one_to_one=2.0).run(heinsen_routing, *rest, {"beta_use": beta})
    start = [[2.0 if i == j else 0.0 for j in range(3)] for i in range(3)]
    expected = oracles.heinsen(*(x.tolist() for x in rest), beta.tolist(), beta.tolist(), eps=0.3, start=start)
    assert_routed(routed, expected)


def test_one_to_one_needs_as_many_parents_as_children() -> None:
    tensors = draw()
    with pytest.raises(ValueError, match=r"one_to_one.*got 3 and 4"):
        Heinsen(one_to_one=1.0).run(
            heinsen_routing, tensors["votes"], tensors["score"], {"beta_use": tensors["beta_use"]}
        )


def test_declares_what_it_learns() -> None:
    def shapes(algorithm: Heinsen, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        learned = algorithm.learned(sizes)
        assert all(x.start == 0 for x in learned.values())
        return {k: x.shape for k, x in learned.items()}

    assert shapes(Heinsen(), Sizes(6, 3, 8)) == {"beta_use": (6, 3), "beta_ignore": (6, 3)}
    assert shapes(Heinsen(), Sizes(None, 3, 8)) == {"beta_use": (3,), "beta_ignore": (3,)}
    assert shapes(Heinsen(), Sizes(None, 1, 8)) == {"beta_use": (1,), "beta_ignore": (1,)}
    assert shapes(Heinsen(tied=True), Sizes(6, 3, 8)) == {"beta_use": (6, 3)}
    assert Heinsen().input_activation == Heinsen().output_activation == "score"
