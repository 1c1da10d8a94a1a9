"""backend="auto": which form takes which votes, by rule."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch._subclasses import FakeTensorMode

from flashcaps.kernels import MATRIX, TRITON
from flashcaps.kernels import dispatch as _choice
from flashcaps.kernels.dispatch import pick_form
from flashcaps.routing.math import OverPositions, over_parents
from flashcaps.routing.votes import Votes


def votes(device: str, dtype: torch.dtype = torch.float32, dim: int = 8, shared: int = 1) -> Votes:
    with FakeTensorMode(allow_non_fake_inputs=True):
        u = torch.empty(2, 6, shared, 1, dim, device=device, dtype=dtype)
        return Votes(u, torch.empty(3, dim, 6, 4, device=device, dtype=dtype))


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("flashcaps.kernels.fit.triton")  # its kernels are interpreted in all other tests
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.mark.parametrize("routing", MATRIX)
def test_by_device(routing: str) -> None:
    assert pick_form(routing, votes("cpu"), over_parents) == "matrix"
    assert pick_form(routing, votes("cuda"), over_parents) == ("triton" if routing in TRITON else "matrix")


@pytest.mark.parametrize("routing", TRITON)
def test_what_the_kernels_cannot_take(routing: str) -> None:
    assert pick_form(routing, votes("cuda", torch.float64), over_parents) == "matrix"
    assert pick_form(routing, votes("cuda", dim=400), over_parents) == "triton"


@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_wide_votes_have_kernels_of_their_own(routing: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        u, weight = torch.empty(2, 6, 1, 8, 8, device="cuda"), torch.empty(32, 8, 6, 8, device="cuda")
        assert pick_form(routing, Votes(u, weight), over_parents) == "triton"


def test_sharing_and_positions() -> None:
    """attend takes one child a transform and a softmax over parents alone; the fit takes both."""
    over_positions = OverPositions(torch.zeros(1, 1, dtype=torch.int64), 1, (1, 1, 1, 1))
    for routing, other in (("attention", "matrix"), ("em", "triton")):
        assert pick_form(routing, votes("cuda", shared=2), over_parents) == other
        assert pick_form(routing, votes("cuda"), over_positions) == other


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_choice, "HAS_TRITON", False)
    assert pick_form("dynamic", votes("cuda"), over_parents) == "matrix"
