"""Some cases of every fuzz target, and tests of the judge itself."""

import os
import signal
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashcaps import ConvCapsules, DenseCapsules
from flashcaps import functional as F

from . import run
from .draw import Draw
from .judge import CARRIED, FINITE, OVERFLOW, REFUSED, UNEXPLAINED, Case, judge
from .run import NAMES, TARGETS, draw_case, make_case

PLAIN = torch.ones(2, 3)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**63))
def test_hostile_arguments_are_answered_or_refused(name: str, seed: int) -> None:
    case = draw_case(name, str(seed))
    verdict = judge(case)
    assert verdict.kind != UNEXPLAINED, f"{verdict.why} [{case.text()}]"


def test_a_case_depends_on_seed_and_number_alone() -> None:
    (name, first), (again, second) = make_case(3, 17), make_case(3, 17)
    assert name == again == NAMES[17 % len(NAMES)]
    assert first.text() == second.text()
    assert make_case(4, 17)[1].text() != first.text()


# ---- the judge


HALF = torch.full((3,), 300.0, dtype=torch.float16)


@pytest.mark.parametrize(("function", "x", "kind"), [
    (lambda x: x + 1, PLAIN, FINITE),
    (lambda x: x - x + torch.nan, PLAIN, UNEXPLAINED),
    (lambda x: (x - 1).sqrt(), PLAIN, UNEXPLAINED),  # finite, but not its gradient
    (lambda x: x + 1, PLAIN * torch.nan, CARRIED),
    (lambda x: x * x, HALF, OVERFLOW),
    (lambda x: x * x / x, HALF, UNEXPLAINED),  # 300, had it been computed well
])  # fmt: skip
def test_inf_and_nan_need_an_explanation(function: Any, x: Tensor, kind: str) -> None:
    assert judge(Case(function, {"x": x}, gradient=x is PLAIN)).kind == kind


@pytest.mark.parametrize(("error", "kind"), [
    (ValueError("x: expected two"), REFUSED),
    (TypeError("x: expected a tensor"), REFUSED),
    (ValueError("bad shape"), UNEXPLAINED),
    (RuntimeError("x: expected two"), UNEXPLAINED),
    (IndexError("x: 7"), UNEXPLAINED),
])  # fmt: skip
def test_an_error_is_a_refusal_if_it_names_the_argument(error: Exception, kind: str) -> None:
    def function(x: Tensor) -> Tensor:
        raise error

    assert judge(Case(function, {"x": PLAIN})).kind == kind


def test_what_is_wrong_with_a_finite_result_is_unexplained() -> None:
    assert judge(Case(lambda x: x, {"x": PLAIN}, check=lambda x: "too plain")).why == "too plain"


def test_a_process_that_dies_is_one_unexplained_case_and_the_rest_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(draw: Draw) -> Case:
        return Case(lambda x: os.kill(os.getpid(), signal.SIGKILL), {"x": PLAIN})

    monkeypatch.setitem(TARGETS, NAMES[1], kill)
    found = run.collect(list(range(4)), seed=0, workers=1)
    assert found["targets"][NAMES[1]][UNEXPLAINED] == 1
    assert sum(sum(kinds.values()) for kinds in found["targets"].values()) == 4
    assert "ended with code -9" in found["unexplained"][NAMES[1]][0]["why"]


# ---- what fuzzing found


def test_votes_too_large_for_any_result_are_refused_by_name() -> None:
    for requires_grad in (False, True):
        votes = torch.full((1, 2, 2, 2), 1e30).requires_grad_(requires_grad)
        with pytest.raises(ValueError, match=r"^votes: expected numbers up to 4\.3e\+09, .* got 1\.0e\+30"):
            F.dynamic_routing(votes)


def test_gradients_of_shared_tensors_are_summed_before_they_are_rounded() -> None:
    """Gradients of opposite signs, each beyond fp16: their sum over the batch is not."""
    votes = torch.tensor([300.0, -300.0], dtype=torch.float16).view(2, 1, 1, 1).expand(2, 1, 1, 2)
    bias = torch.zeros(1, 2, dtype=torch.float16, requires_grad=True)
    F.dynamic_routing(votes, bias=bias, iterations=1).pose.sum().backward()
    assert bias.grad.isfinite().all()


@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_parents_with_hardly_a_child_have_finite_gradients(routing: str) -> None:
    """Weights of 1e-37 in the third iteration: mean / weight is beyond fp32, its product with the weight is not."""
    layer = DenseCapsules(routing, in_capsules=None, in_dim=1, out_capsules=4, out_dim=4, eps=0.05)
    for seed in range(20):
        torch.manual_seed(seed)
        u = (1e4 * torch.randn(3, 1, 1)).requires_grad_()
        routed = layer(u)
        (routed.pose.sum() + routed.activation.sum() + routed.variance.sum()).backward()
        assert u.grad.isfinite().all()


def test_patches_that_overlap_sum_their_gradients_before_they_are_rounded() -> None:
    """Each patch's gradient may be beyond fp16 with either sign; Inf - Inf would be NaN."""
    layer = ConvCapsules("heinsen", in_types=3, in_dim=3, out_types=2, out_dim=3, kernel=3, eps=0.05)
    u = (1e4 * torch.randn(2, 3, 3, 5, 3).tanh()).half().requires_grad_()
    routed = layer(u)
    (routed.pose.float().sum() + routed.variance.sum()).backward()
    assert not u.grad.isnan().any()
    assert routed.pose.dtype == torch.float16


def test_an_ascent_whose_sum_passes_the_end_of_fp16_stays_finite() -> None:
    votes = torch.full((4, 2, 2, 1), 200.0, dtype=torch.float16)  # their agreement is 1.6e5
    b = torch.full((2, 2), 0.5, dtype=torch.float16)
    assert F.discriminative_update(b, votes, torch.tensor([0, 1, 0, 0]), rate=1e-4, strength=0.0).isfinite().all()
