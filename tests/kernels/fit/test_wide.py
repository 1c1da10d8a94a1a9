"""Wide poses in the Triton form of the fit: tiles of stored votes, a few examples at a time, against float64."""

from typing import Any

import pytest
import torch

from flashcaps import ConvCapsules
from flashcaps.kernels.fit import plan
from flashcaps.kernels.fit.op import inputs_of
from flashcaps.kernels.fit.plan import Options, Walk, is_wide, rows_at_once

from ..twins import assert_same_as_reference
from .cases import WIDE, Case, assert_twin, names, operator_inputs


def in_parts(monkeypatch: pytest.MonkeyPatch, examples: int) -> None:
    """So many at a time, however much room there is."""
    monkeypatch.setattr(plan, "rows_at_once", lambda x, o: examples * (4 if o.grid else 1))


@pytest.mark.parametrize("case", WIDE, ids=names)
def test_outputs_and_gradients(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of what examples share add up; of three examples the last part has but one."""
    in_parts(monkeypatch, 2 if case.b > 2 else 1)
    assert is_wide(torch.empty(case.j, case.d, case.g, case.h), case.c * case.h)
    assert_twin(case, torch.float32)


def test_narrow_poses_whose_transforms_no_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CACHED", 0)
    in_parts(monkeypatch, 2)
    assert_twin(Case(3, 5, 1, 1, 8, 5, 3, betas="ij", bias=True), torch.float32)


def test_all_examples_at_once() -> None:
    tensors = operator_inputs(WIDE[4])
    assert rows_at_once(inputs_of(*tensors[:10], []), Options(*tensors[10:])) >= WIDE[4].b
    assert_twin(WIDE[4], torch.float32)


@pytest.mark.parametrize("case", [WIDE[3], WIDE[6]], ids=names)
def test_half_precision(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch, 2)
    assert_twin(case, torch.float16)


def test_more_parents_than_a_tile_has_and_children_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = WIDE[4]
    monkeypatch.setattr(plan, "TILE", 2 << (case.c * case.h - 1).bit_length())
    monkeypatch.setattr(plan, "walk_tiles", lambda source, tiles: Walk(1, 1, source.tile["PARENTS"], 3, 1))
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("over", ["types", "positions"])
def test_convolutional_layers(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poses this wide are gathered into patches; places of one example share a softmax, and stay together."""
    in_parts(monkeypatch, 1)
    sizes: dict[str, Any] = dict(in_types=1, in_dim=(1, 12), out_types=2, out_dim=(1, 24), kernel=2, stride=1)
    options: dict[str, Any] = dict(routing="em", iterations=2, inverse_temperature=0.3, eps=0.05, over=over)
    assert_same_as_reference(ConvCapsules, (2, 1, 3, 3, 12), sizes | options, gated=True)
