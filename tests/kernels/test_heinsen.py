"""Heinsen's routing without votes, against the reference with them."""

import math

import pytest

from flashcaps.kernels import votes as _blocks

from ..layer_cases import LayerCase, assert_same, outputs, run_layer
from .twins import TINY, Twins


class TestHeinsen(Twins):
    routing = "heinsen"


@pytest.mark.parametrize("form", ["dense", "any", "shared", "conv"])
@pytest.mark.parametrize("budget", [TINY, {"cpu": 1 << 20, "cuda": 1 << 20}])
def test_same_with_masks_of_infinity(form: str, budget: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Present, absent, and an example with nobody in it."""
    monkeypatch.setattr(_blocks, "BUDGET", budget)
    case = LayerCase("heinsen", form)
    u, score = case.draw(3)
    score.view(3, -1)[0, ::2] = math.inf
    score.view(3, -1)[1, 1:] = -math.inf
    score[2] = -math.inf
    matrix = run_layer(case.build("matrix"), u, score, coupling=True)
    assert_same(matrix, run_layer(case.build("reference"), u, score, coupling=True))
    for name, x in [*outputs(matrix[0]), *matrix[1].items()]:
        assert x.isfinite().all(), name
