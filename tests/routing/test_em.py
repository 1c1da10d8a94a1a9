"""EM routing: masks, by-hand values. Values against the oracle: test_contract.py."""

import math

import pytest
import torch
from torch import Tensor

from flashcaps import DenseCapsules
from flashcaps.functional import em_routing, inverse_temperature
from flashcaps.kernels.votes import covered
from flashcaps.routing.em import EM, even_share
from flashcaps.routing.math import OverPositions, over_parents

from ..cases import CASES, assert_gradients, assert_oracle
from ..conftest import assert_near
from . import oracles

B, I, J, D = 2, 4, 3, 2
MASK = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]]).bool()  # the third child has no parent


def draw(b: int = B, i: int = I, j: int = J, d: int = D) -> dict[str, Tensor]:
    return CASES["em"].draw(b, i, j, d)


@pytest.mark.parametrize("eps", [1e-8, 0.3])
def test_agrees_with_oracle_with_a_mask_and_four_temperatures(eps: float) -> None:
    assert_oracle(
        CASES["em"], draw() | {"mask": MASK}, inverse_temperature=[0.1, 2.0, 0.5, 1.0], iterations=4, eps=eps
    )


def test_gradients_with_a_childless_parent_and_a_parentless_child() -> None:
    mask = MASK.clone()
    mask[3, 2] = False
    assert_gradients(CASES["em, mask"], draw() | {"mask": mask})


def test_cost_uses_log_sigma_not_log_variance() -> None:
    """Votes -3 and 3: sigma = 3, so cost = (beta_u + log 3) * 2 for the one parent."""
    votes = torch.tensor([-3.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1)
    beta = torch.tensor([0.25], dtype=torch.float64)
    routed = em_routing(
        votes, torch.ones(1, 2, dtype=torch.float64), beta_u=beta, beta_a=2 * beta, inverse_temperature=0.5, eps=0.0
    )
    assert_near(routed.activation, [[oracles.logistic(0.5 * (0.5 - (0.25 + math.log(3)) * 2))]])
    assert_near(routed.variance, [[[9.0]]])


def test_inverse_temperature_schedule() -> None:
    assert inverse_temperature(3) == pytest.approx((0.01 * 0.05, 0.01 * 0.0975, 0.01 * 0.142625))
    with pytest.raises(ValueError, match=r"inverse_temperature.*3 iterations, got 2"):
        em_routing(**draw(), inverse_temperature=[0.1, 0.2], iterations=3)
    with pytest.raises(ValueError, match=r"^iterations: expected at most 1000, got 1001"):
        inverse_temperature(1001)
    for wrong in ({"sharpness": -3}, {"inverse_temperature": (1.0, -0.1, 1.0)}):  # densities would grow without bound
        with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}: expected a finite number of at least 0, got -"):
            EM(**wrong)


def test_a_relative_layer_answers_alike_whatever_its_size() -> None:
    """The same votes from twice as many children, and the same elements twice: activations and couplings stay."""
    small = draw(1)
    learned = {k: small[k] for k in ("beta_u", "beta_a")}
    run = EM(3, eps=0.0, relative=True).run
    votes, activation = small["votes"], small["activation"]
    routed = run(em_routing, votes, activation, learned)
    more = run(em_routing, votes.repeat(1, 2, 1, 1), activation.repeat(1, 2), learned)
    wider = run(em_routing, votes.repeat(1, 1, 1, 2), activation, learned)
    assert_near(more.activation, routed.activation)
    assert_near(wider.activation, routed.activation)
    assert_near(wider.coupling, routed.coupling)


def test_even_share_is_what_an_even_assignment_sums_to() -> None:
    h, w, kernel, stride, types, parents = 5, 4, 3, 1, 2, 3
    softmax = OverPositions(covered(h, w, kernel, stride), h * w)
    places = softmax.child.shape[0]
    even = softmax(torch.zeros(places, types * kernel**2, parents))
    found = even_share((places, types * kernel**2, parents, 1), softmax)
    assert_near(even.sum() / (places * parents), found, 1e-6)
    assert even_share((1, 6, 3, 1), over_parents) == 2


def test_batch_normalisation_of_the_last_logit() -> None:
    """Activations are those of a logit with mean 0 and variance 1 over the batch, and nothing else changes."""
    sizes = dict(in_capsules=4, in_dim=3, out_capsules=3, out_dim=3)
    layer = DenseCapsules("em", **sizes, norm_activation=True, relative=True)
    u, a = torch.randn(8, 4, 3), torch.rand(8, 4)
    logit = layer(u, a).activation.logit()
    assert_near(logit.mean(0), 0.0, 1e-5)
    assert_near(logit.var(0, correction=0), 1.0, 1e-2)
    plain = DenseCapsules("em", **sizes, relative=True)
    plain.load_state_dict({k: x for k, x in layer.state_dict().items() if "output_norm" not in k})
    assert_near(plain(u, a).pose, layer(u, a).pose, 0.0)
    assert (plain(u, a).activation - layer(u, a).activation).abs().max() > 1e-3
    half = layer.bfloat16()(u.bfloat16(), a.bfloat16())
    assert half.activation.dtype == torch.bfloat16
    assert half.activation.isfinite().all()
    layer.output_norm[0].eval()  # frozen, which it stays
    layer(u, a, record=True)  # looks at earlier iterations with the statistics of the last
    assert not layer.output_norm[0].training
