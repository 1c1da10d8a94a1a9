"""Heinsen routing without votes, against the reference with them."""

from __future__ import annotations

import pytest
import torch

from flashcaps.kernels import _blocks

from ..layer_cases import LayerCase, cases, ids
from .twins import BIG, TINY, assert_low_precision, assert_no_votes, assert_twins, channels_last, strided

CASES = cases("heinsen")
PLAIN = cases("heinsen", options=False)
PLACED = [case for case in PLAIN if len(case.children) == 3]
MEMORY_FORMS = tuple(BIG)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_same_as_reference(case: LayerCase) -> None:
    assert_twins(case, *case.draw())


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_same_couplings_and_history(case: LayerCase) -> None:
    assert_twins(case, *case.draw(seed=2), coupling=True, record=True)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_same_in_many_blocks(case: LayerCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "BUDGET", TINY)
    assert_twins(case, *case.draw(), coupling=True)


@pytest.mark.parametrize("case", PLAIN, ids=ids)
@pytest.mark.parametrize("batch", [0, 1])
def test_same_for_small_batches(case: LayerCase, batch: int) -> None:
    assert_twins(case, *case.draw(batch), coupling=True, record=True)


@pytest.mark.parametrize("case", PLAIN, ids=ids)
def test_same_for_strided_poses(case: LayerCase) -> None:
    u, a = case.draw()
    assert_twins(case, strided(u), None if a is None else strided(a))


@pytest.mark.parametrize("case", PLACED, ids=ids)
def test_same_for_channels_last_features(case: LayerCase) -> None:
    u, a = case.draw()
    assert_twins(case, channels_last(u), a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_same_in_low_precision(case: LayerCase, dtype: torch.dtype) -> None:
    assert_low_precision(case, dtype)


@pytest.mark.parametrize("form", MEMORY_FORMS)
def test_votes_are_never_stored(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_no_votes("heinsen", form, 1 << 15, monkeypatch)


def test_votes_are_never_stored_when_one_child_exceeds_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_no_votes("heinsen", "conv", 1 << 8, monkeypatch)
