"""Discriminative routing without votes, against the reference with them."""

import pytest
import torch

from flashcaps.functional import discriminative_update
from flashcaps.kernels.discriminative import weighted_sum, weighted_sum_agreement
from flashcaps.kernels.votes import Votes

from ..conftest import DOUBLE, assert_near
from ..layer_cases import make_votes
from .operator_checks import assert_as_in_float64, poison_memory
from .twins import Twins


class TestDiscriminative(Twins):
    routing = "discriminative"


@pytest.mark.parametrize("rows", [1, 3])
def test_kernels(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum, and its gradients, those of coefficients included: what a layer under another needs."""
    u, weight, b = torch.randn(5, 7, 1, rows, 3), torch.randn(4, 3, 7, 2), torch.randn(7, 4)
    poison_memory(monkeypatch, "empty")
    assert_as_in_float64(
        lambda u, weight, b: weighted_sum(Votes(u, weight), b, triton=True),
        lambda u, weight, b: torch.einsum("ij,bijd->bjd", b, Votes(u, weight).explicit()),
        *(x.requires_grad_() for x in (u, weight, b)),
    )
    with pytest.raises(ValueError, match="cannot run, 2 children share each transform"):
        weighted_sum(Votes(u.expand(5, 7, 2, rows, 3), weight), torch.randn(14, 4), triton=True)


@pytest.mark.parametrize("labels", [[2, 0, 1, 1], [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]], ids=["one", "several"])
def test_agreement_of_matrix_poses(labels: list) -> None:
    votes = make_votes(torch.randn(4, 5, 1, 2, 3, **DOUBLE), torch.randn(3, 5, 3, 2, **DOUBLE))
    b, given = torch.randn(5, 3, **DOUBLE), torch.tensor(labels)
    risen = discriminative_update(b, votes.explicit(), given, rate=0.5, strength=0.0)  # b + agreement: Eq. 13
    assert_near(b + weighted_sum_agreement(votes, b, given), risen)
