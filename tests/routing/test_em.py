"""EM routing against the slides' Procedure 1 in plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flashcaps.functional import em_routing, inverse_temperature
from flashcaps.routing import Sizes
from flashcaps.routing.em import EM
from flashcaps.routing.math import OverPositions

from ..cases import CASES, SHAPES, assert_gradients, assert_routed, backward, lists, named
from ..conftest import assert_near
from . import oracles

B, I, J, D = 2, 4, 3, 2


def draw(b: int = B, i: int = I, j: int = J, d: int = D) -> dict[str, Tensor]:
    return CASES["em"].draw(b, i, j, d)


def check(tensors: dict[str, Tensor], **options) -> None:
    """Agreement with the oracle under these options, iteration by iteration."""
    mask = options.pop("mask", None)
    tensors = tensors if mask is None else tensors | {"mask": mask}
    assert_routed(em_routing(**tensors, record=True, **options), oracles.em(**lists(tensors), **options))


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("eps", [1e-8, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_oracle(shape: tuple[int, ...], eps: float, iterations: int) -> None:
    check(draw(*shape), inverse_temperature=0.7, iterations=iterations, eps=eps)


@pytest.mark.parametrize("eps", [1e-8, 0.3])
def test_agrees_with_oracle_with_beta_per_element(eps: float) -> None:
    tensors = draw() | {"beta_u": torch.randn(J, D, dtype=torch.float64)}
    check(tensors, inverse_temperature=0.7, eps=eps)


def test_agrees_with_oracle_with_one_temperature_per_iteration() -> None:
    check(draw(), inverse_temperature=[0.1, 2.0, 0.5, 1.0], iterations=4)


def test_agrees_with_oracle_with_the_paper_schedule() -> None:
    check(draw(), inverse_temperature=list(inverse_temperature(3)))


MASK = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]]).bool()  # the third child has no parent


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("eps", [1e-8, 0.3])
def test_agrees_with_oracle_with_a_mask(eps: float, iterations: int) -> None:
    check(draw(), mask=MASK, inverse_temperature=0.7, iterations=iterations, eps=eps)


def test_a_child_without_parents_is_coupled_to_nobody() -> None:
    tensors, options = draw(), {"inverse_temperature": 0.7}
    with_child = em_routing(**tensors, mask=MASK, **options)
    assert_near(with_child.coupling[:, 2], 0.0, 0.0)
    keep = torch.tensor([0, 1, 3])
    without = em_routing(**CASES["em"].select(tensors, "i", keep), mask=MASK[keep], **options)
    assert_near(with_child.pose, without.pose)
    assert_near(with_child.activation, without.activation)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_parent_without_children_has_finite_values_and_gradients(dtype: torch.dtype) -> None:
    mask = torch.tensor([[1, 0, 1]] * I).bool()
    tensors = CASES["em"].draw(B, I, J, D, dtype=dtype) | {"mask": mask}
    routed, gradients = backward(CASES["em, mask"], tensors, eps=1e-8)
    assert all(x.isfinite().all() for x in (routed.pose, routed.activation, routed.variance, *gradients.values()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", named("em"))
def test_gradients(name: str, shape: tuple[int, ...]) -> None:
    assert_gradients(CASES[name], CASES[name].draw(*shape))


def test_gradients_with_a_childless_parent_and_a_parentless_child() -> None:
    mask = MASK.clone()
    mask[3, 2] = False
    assert_gradients(CASES["em, mask"], draw() | {"mask": mask})


def test_activation_is_not_cancelled_by_renormalising() -> None:
    """Two children, one nearly absent: renormalised over parents, both would weigh the same."""
    weak, strong = draw(1, 2, 2, 1), draw(1, 2, 2, 1)
    weak["activation"] = torch.tensor([[0.01, 1.0]], dtype=torch.float64)
    strong["activation"] = torch.tensor([[1.0, 0.01]], dtype=torch.float64)
    votes = weak["votes"]
    options = {"inverse_temperature": 1.0, "iterations": 1}
    assert_near(em_routing(**weak, **options).pose, (0.01 * votes[:, 0] + votes[:, 1]) / 1.01, 1e-6)
    assert_near(em_routing(**strong, **options).pose, (votes[:, 0] + 0.01 * votes[:, 1]) / 1.01, 1e-6)


def test_coupling_is_a_distribution_before_the_activation_gates_it() -> None:
    tensors = draw()
    assert_near(em_routing(**tensors, inverse_temperature=0.7).coupling.sum(2), 1.0)


def test_first_assignment_is_one_over_the_parents_a_child_can_vote_for() -> None:
    options = {"inverse_temperature": 1.0, "iterations": 1}
    assert_near(em_routing(**draw(), **options).coupling, 1 / J)
    first = em_routing(**draw(), mask=MASK, **options).coupling[0]
    assert_near(first, [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 0], [0.5, 0, 0.5]])


def test_first_assignment_counts_types_and_positions_that_cover_a_child() -> None:
    """Three places, kernel 2: two parent places of two types. The middle child has four parents, the border two."""
    child = torch.tensor([[0, 1], [1, 2]])
    tensors = draw(2, 2, 2, 3)  # one example of two parent places, one child type, two kernel places
    routed = em_routing(
        **tensors, inverse_temperature=1.0, iterations=1, softmax=OverPositions(child, places=3)
    )
    assert_near(routed.coupling, [[[0.5, 0.5], [0.25, 0.25]], [[0.25, 0.25], [0.5, 0.5]]])



def test_e_step_normalises_over_types_and_positions_that_cover_a_child() -> None:
    """Second iteration of a 1-D convolution (three children, kernel 2), by hand from the first iteration's moments."""
    child = torch.tensor([[0, 1], [1, 2]])
    tensors = draw(2, 2, 2, 3)
    options = {"inverse_temperature": 1.0, "eps": 0.05, "softmax": OverPositions(child, places=3)}
    first = em_routing(**tensors, iterations=1, **options)
    second = em_routing(**tensors, iterations=2, **options)
    score: dict[int, dict[tuple[int, int, int], float]] = {}
    for place in range(2):
        for k in range(2):
            for j in range(2):
                p = oracles.density(
                    tensors["votes"][place, k, j].tolist(),
                    first.pose[place, j].tolist(),
                    first.variance[place, j].tolist(),
                )
                score.setdefault(place + k, {})[place, k, j] = p * first.activation[place, j].item()
    for scores in score.values():
        for (place, k, j), p in scores.items():
            assert second.coupling[place, k, j].item() == pytest.approx(p / sum(scores.values()), abs=1e-10)


def test_cost_uses_log_sigma_not_log_variance() -> None:
    """Votes -3 and 3: sigma = 3, so cost = (beta_u + log 3) * 2 for the one parent."""
    votes = torch.tensor([-3.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1)
    beta = torch.tensor([0.25], dtype=torch.float64)
    routed = em_routing(
        votes, torch.ones(1, 2, dtype=torch.float64), beta_u=beta, beta_a=2 * beta, inverse_temperature=0.5, eps=0.0
    )
    assert_near(routed.activation, [[oracles.logistic(0.5 * (0.5 - (0.25 + math.log(3)) * 2))]])
    assert_near(routed.variance, [[[9.0]]])


def test_cost_uses_the_plain_sum_of_assignments() -> None:
    """eps joins the sum of r' only where it divides: with unit variances beta_u is paid for each child once."""
    votes = torch.tensor([-1.0, 1.0], dtype=torch.float64).view(1, 2, 1, 1)
    eps = 0.5
    one = torch.ones(1, dtype=torch.float64)
    options = {"beta_u": one, "beta_a": one, "inverse_temperature": 1.0, "eps": eps, "iterations": 1}
    routed = em_routing(votes, torch.ones(1, 2, dtype=torch.float64), **options)
    variance = 2 / (2 + eps) + eps
    assert_near(routed.variance, [[[variance]]])
    assert_near(routed.activation, [[oracles.logistic(1 - (1 + 0.5 * math.log(variance)) * 2)]])


def test_no_density_is_multiplied_out() -> None:
    """In 64 dimensions and fp32 every density underflows; logarithms do not."""
    tensors = CASES["em"].draw(1, 6, 3, 64, dtype=torch.float32, size=50.0)
    routed, gradients = backward(CASES["em"], tensors, eps=1e-8, inverse_temperature=1.0)
    assert_near(routed.coupling.sum(2), 1.0)
    assert all(x.isfinite().all() for x in (*routed[:4], *gradients.values()))


def test_variance_has_a_floor() -> None:
    tensors = draw(1, 3, 2, 2)
    tensors["votes"] = tensors["votes"][:, :1].expand(1, 3, 2, 2)  # every child votes alike
    variance = em_routing(**tensors, inverse_temperature=1.0, eps=1e-4).variance
    assert variance.min() >= 1e-4


def test_inverse_temperature_schedule() -> None:
    assert inverse_temperature(3) == pytest.approx((0.01 * 0.05, 0.01 * 0.0975, 0.01 * 0.142625))


def test_gradient_flows_through_every_iteration() -> None:
    """beta_u reaches the pose through assignments alone: cut before the last M-step, its gradient would be zero."""
    tensors = draw() | {"beta_u": torch.randn(J, dtype=torch.float64, requires_grad=True)}
    em_routing(**tensors, inverse_temperature=1.0, iterations=2).pose.square().sum().backward()
    assert tensors["beta_u"].grad.abs().max() > 1e-3


def test_coupling_is_that_of_the_last_m_step() -> None:
    tensors = draw()
    routed = em_routing(**tensors, inverse_temperature=0.7, eps=0.0)
    weight = routed.coupling * tensors["activation"][..., None]
    assert_near(routed.pose, (weight[..., None] * tensors["votes"]).sum(1) / weight.sum(1)[..., None])


def test_a_schedule_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"inverse_temperature.*3 iterations, got 2"):
        em_routing(**draw(), inverse_temperature=[0.1, 0.2], iterations=3)


def test_algorithm_hands_its_options_on() -> None:
    tensors = draw()
    learned = {k: tensors[k] for k in ("beta_u", "beta_a")}
    routed = EM(iterations=2, eps=0.3).run(em_routing, tensors["votes"], tensors["activation"], learned)
    expected = oracles.em(**lists(tensors), inverse_temperature=list(inverse_temperature(2)), iterations=2, eps=0.3)
    assert_routed(routed, expected)
    routed = EM(inverse_temperature=0.7).run(em_routing, tensors["votes"], tensors["activation"], learned)
    assert_routed(routed, oracles.em(**lists(tensors), inverse_temperature=0.7))


def test_declares_what_it_learns() -> None:
    learned = EM().learned(Sizes(6, 3, 16))
    assert {name: (x.shape, x.start) for name, x in learned.items()} == {"beta_u": ((3,), 0), "beta_a": ((3,), 0)}
    assert EM().input_activation == EM().output_activation == "probability"
