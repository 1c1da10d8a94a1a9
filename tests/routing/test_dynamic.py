"""Dynamic routing against Procedure 1 in plain loops."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from flashcaps.functional import dynamic_routing, squash
from flashcaps.routing import Sizes
from flashcaps.routing.dynamic import Dynamic

from ..cases import CASES, SHAPES, assert_gradients, assert_routed, lists, named
from ..conftest import TOLERANCE, assert_near
from . import oracles

B, I, J, D = 2, 4, 3, 2


def votes(*shape: int) -> Tensor:
    return torch.randn(shape or (B, I, J, D), dtype=torch.float64)


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_oracle(shape: tuple[int, ...], leaky: bool, iterations: int) -> None:
    u = votes(*shape)
    routed = dynamic_routing(u, iterations=iterations, leaky=leaky, record=True)
    assert_routed(routed, oracles.dynamic(u.tolist(), iterations, leaky=leaky))


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize(("shared", "bias", "leaky"), list(itertools.product([False, True], repeat=3)))
def test_agrees_with_oracle_with_priors_and_bias(shared: bool, bias: bool, leaky: bool, iterations: int) -> None:
    options = {"logits": votes(J) if shared else votes(I, J)} | ({"bias": votes(J, D)} if bias else {})
    u = votes()
    routed = dynamic_routing(u, iterations=iterations, leaky=leaky, record=True, **options)
    assert_routed(routed, oracles.dynamic(u.tolist(), iterations, leaky=leaky, **lists(options)))


def test_detach_changes_no_value() -> None:
    u, logits, bias = votes(), votes(I, J), votes(J, D)
    expected = oracles.dynamic(u.tolist(), 3, logits.tolist(), bias.tolist())
    assert_routed(dynamic_routing(u, logits=logits, bias=bias, detach=True, record=True), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [n for n in named("dynamic") if "detach" not in n])
def test_gradients(name: str, shape: tuple[int, ...]) -> None:
    assert_gradients(CASES[name], CASES[name].draw(*shape))


def _constant_logits(u: Tensor, logits: Tensor, bias: Tensor, iterations: int) -> Tensor:
    """What all but the last iteration add to the logits of the single example, from the oracle's poses."""
    (steps,) = oracles.dynamic(u.tolist(), iterations, logits.tolist(), bias.tolist()).steps
    added = torch.zeros_like(logits)
    for _, pose in steps[:-1]:
        for i, j in itertools.product(range(u.shape[1]), range(u.shape[2])):
            added[i, j] += oracles.dot(u[0, i, j].tolist(), pose[j])
    return added


def _last_iteration_gradients(u: Tensor, logits: Tensor, bias: Tensor, added: Tensor, weight: Tensor) -> list[Tensor]:
    """Central differences of sum(weight * pose) of one iteration whose logits are logits + a constant."""

    def loss(x: list[Tensor]) -> float:
        pose = oracles.dynamic(x[0].tolist(), 1, (x[1] + added).tolist(), x[2].tolist()).pose[0]
        return sum(oracles.dot(p, w) for p, w in zip(pose, weight.tolist(), strict=True))

    gradients, step = [], 1e-5
    for k, x in enumerate((u, logits, bias)):
        gradient = torch.zeros(x.numel(), dtype=torch.float64)
        for n in range(x.numel()):
            sides = []
            for sign in (1, -1):
                moved = [y.clone() for y in (u, logits, bias)]
                moved[k].view(-1)[n] += sign * step
                sides.append(loss(moved))
            gradient[n] = (sides[0] - sides[1]) / (2 * step)
        gradients.append(gradient.view_as(x))
    return gradients


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_detach_stops_gradient_on_all_but_the_last_iteration(iterations: int) -> None:
    inputs = [votes(1, 3, 2, 2), votes(3, 2), votes(2, 2)]
    weight = votes(2, 2)
    expected = _last_iteration_gradients(*inputs, _constant_logits(*inputs, iterations), weight)
    u, logits, bias = (x.clone().requires_grad_() for x in inputs)
    pose = dynamic_routing(u, logits=logits, bias=bias, iterations=iterations, detach=True).pose
    (pose[0] * weight).sum().backward()
    for name, x, wanted in zip(("votes", "logits", "bias"), (u, logits, bias), expected, strict=True):
        assert_near(x.grad, wanted, TOLERANCE[torch.float64].gradient, f"gradient of {name}")


def test_gradient_flows_through_all_iterations_by_default() -> None:
    gradients = []
    for detach in (False, True):
        u = votes(1, 3, 2, 2).copy_(torch.arange(12.0).view(1, 3, 2, 2).sin()).requires_grad_()
        dynamic_routing(u, detach=detach).pose.square().sum().backward()
        gradients.append(u.grad)
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3


def test_softmax_is_over_parents_not_children() -> None:
    coupling = dynamic_routing(votes(2, 5, 3, 4)).coupling
    assert_near(coupling.sum(2), 1.0)
    assert (coupling.sum(1) - 1).abs().max() > 0.1


def test_iterations_counts_weighted_sums() -> None:
    """Three iterations are three passes of lines 4 to 6, so one gives the uniform mean."""
    u = votes()
    assert_near(dynamic_routing(u, iterations=1).pose, squash(u.mean(1) * I / J))
    assert len(dynamic_routing(u, iterations=3, record=True).history) == 3


def test_no_logit_update_after_last_iteration() -> None:
    """The coupling returned is the one the pose was made with."""
    u = votes()
    routed = dynamic_routing(u, iterations=2)
    assert_near(routed.pose, squash((routed.coupling[..., None] * u).sum(1)))
    after = dynamic_routing(u, iterations=3).coupling
    assert (routed.coupling - after).abs().max() > 1e-3


def test_priors_default_to_zero_and_stay_part_of_every_iteration() -> None:
    u = votes()
    assert_near(dynamic_routing(u, logits=torch.zeros(I, J)).pose, dynamic_routing(u).pose, 0.0)
    prior = torch.tensor([40.0, 0.0, 0.0], dtype=torch.float64)  # strong enough to outweigh any agreement
    assert_near(dynamic_routing(u, logits=prior, iterations=4).coupling[..., 0], 1.0)


def test_priors_of_children_differ_from_priors_of_parents() -> None:
    """(J,) is one row for every child, even where I = J would let it be read as a column."""
    u, logits = votes(2, 3, 3, 2), votes(3)
    rows = logits.expand(3, 3)
    assert_near(dynamic_routing(u, logits=logits).pose, dynamic_routing(u, logits=rows).pose, 0.0)


def test_bias_is_added_in_every_iteration() -> None:
    """A bias along one parent's votes must already move the second iteration's couplings."""
    u = torch.ones(1, 2, 2, 1, dtype=torch.float64)
    bias = torch.tensor([[3.0], [0.0]], dtype=torch.float64)
    c = dynamic_routing(u, bias=bias, iterations=2).coupling
    v = [oracles.squash([1 + 3.0])[0], oracles.squash([1.0])[0]]
    assert_near(c[0, 0], oracles.softmax(v))


def test_leaky_share_of_none_of_the_above_is_dropped() -> None:
    coupling = dynamic_routing(torch.zeros(1, 2, 3, 2), leaky=True, iterations=1).coupling
    assert_near(coupling, 0.25)  # one more logit of zero in the softmax


def test_activation_is_the_length_of_the_pose() -> None:
    routed = dynamic_routing(votes())
    assert_near(routed.activation, [[oracles.norm(v) for v in example] for example in routed.pose.tolist()])
    assert routed.variance is None


def test_declares_what_it_learns() -> None:
    assert Dynamic().learned(Sizes(6, 3, 8)) == {}
    learned = Dynamic(prior=True, bias=True).learned(Sizes(6, 3, 8))
    assert learned["logits"].shape == (6, 3)
    assert learned["logits"].start == 0
    assert learned["logits"].per_child
    assert learned["bias"].shape == (3, 8)
    assert learned["bias"].start == 0.1  # the start in the authors' code
    assert Dynamic(prior=True).learned(Sizes(None, 3, 8))["logits"].shape == (3,)


def test_algorithm_hands_its_options_on() -> None:
    u, learned = votes(), {"logits": votes(I, J), "bias": votes(J, D)}
    routed = Dynamic(iterations=2, leaky=True).run(dynamic_routing, u, None, learned)
    assert_routed(routed, oracles.dynamic(u.tolist(), 2, leaky=True, **lists(learned)))
    assert Dynamic().output_activation == "length"
    assert Dynamic().input_activation is None
