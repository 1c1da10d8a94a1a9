"""Moments of weighted votes and log densities, against plain loops."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from flashcaps.routing.math import log_density, weighted_moments

from ..cases import SHAPES
from ..conftest import assert_near
from . import oracles


@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_weighted_moments_agree_with_oracle(shape: tuple[int, ...], eps: float) -> None:
    votes, weight = torch.randn(shape, dtype=torch.float64), torch.rand(shape[:3], dtype=torch.float64)
    for actual, part in zip(weighted_moments(weight, votes, eps), range(3), strict=True):
        expected = [
            [oracles.moments(w, v, j, eps)[part] for j in range(shape[2])]
            for w, v in zip(weight.tolist(), votes.tolist(), strict=True)
        ]
        assert_near(actual, expected)


def test_total_is_the_plain_sum() -> None:
    weight = torch.full((1, 3, 1), 2.0)
    assert weighted_moments(weight, torch.zeros(1, 3, 1, 1), eps=0.5)[0].item() == 6


def test_no_weight_at_all_gives_mean_zero_and_the_floor() -> None:
    total, mean, variance = weighted_moments(torch.zeros(1, 3, 2), torch.randn(1, 3, 2, 2), eps=1e-5)
    assert_near(total, 0.0, 0.0)
    assert_near(mean, 0.0, 0.0)
    assert (variance == 1e-5).all()


def test_variance_is_about_the_mean() -> None:
    """Votes near 1000 with a spread of one: second moments would cancel in fp32, deviations do not."""
    votes = 1000 + torch.tensor([-1.0, 1.0, -1.0, 1.0]).view(1, 4, 1, 1)
    _, _, variance = weighted_moments(torch.ones(1, 4, 1), votes, eps=0.0)
    assert_near(variance, 1.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_log_density_agrees_with_oracle_up_to_the_constant(shape: tuple[int, ...]) -> None:
    b, i, j, d = shape
    votes, mean = torch.randn(shape, dtype=torch.float64), torch.randn(b, j, d, dtype=torch.float64)
    variance = torch.rand(b, j, d, dtype=torch.float64) + 0.1
    actual = log_density(votes, mean, variance)
    constant = 0.5 * d * math.log(2 * math.pi)
    for e, c, p in itertools.product(range(b), range(i), range(j)):
        density = oracles.density(votes[e, c, p].tolist(), mean[e, p].tolist(), variance[e, p].tolist())
        assert actual[e, c, p].item() == pytest.approx(math.log(density) + constant, abs=1e-10)


def test_gradients() -> None:
    votes = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda w, v: weighted_moments(w, v, 1e-3), (weight, votes))
    mean = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    variance = (torch.rand(2, 2, 2, dtype=torch.float64) + 0.1).requires_grad_()
    assert gradcheck(log_density, (votes, mean, variance))
