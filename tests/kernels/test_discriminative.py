"""Discriminative routing without votes, against the reference with them."""

from __future__ import annotations

import pytest
import torch

from flashcaps.functional import discriminative_update as reference_update
from flashcaps.kernels import _blocks
from flashcaps.kernels.discriminative import discriminative_update

from ..conftest import assert_near
from ..layer_cases import make_votes
from .twins import TINY, Twins


class TestDiscriminative(Twins):
    routing = "discriminative"


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("budget", [TINY, {"cpu": 1 << 20, "cuda": 1 << 20}])
@pytest.mark.parametrize("multi_hot", [False, True])
def test_update(multi_hot: bool, budget: dict[str, int], penalty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "BUDGET", budget)
    double = {"dtype": torch.float64}
    votes = make_votes(torch.randn(4, 5, 1, 2, 3, **double), torch.randn(3, 5, 3, 2, **double))
    coefficients = torch.randn(5, 3, **double)
    coefficients[0, 0] = 0.0
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]) if multi_hot else torch.tensor([2, 0, 1, 1])
    options = {"rate": 0.1, "strength": 0.3, "penalty": penalty}
    expected = reference_update(coefficients, votes.explicit(), labels, **options)
    assert_near(discriminative_update(coefficients, votes, labels, **options), expected)
