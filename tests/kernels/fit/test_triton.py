"""The Triton form of the fit against its definition in float64, in Triton's interpreter where there is no GPU."""

import pytest
import torch

from flashcaps.kernels.common.replay import dry_run
from flashcaps.kernels.fit import plan
from flashcaps.kernels.fit.matrix import Fit, Rule
from flashcaps.kernels.fit.plan import Walk, is_stored
from flashcaps.kernels.fit.triton import TritonFit, supported
from flashcaps.kernels.votes import Votes, Windows, covered
from flashcaps.routing.math import OverPositions, masked, over_parents

from ...conftest import TOLERANCE, assert_near
from .cases import CASES, EPS, MADE, STORED, Case, assert_image_twin, assert_twin, names, run


@pytest.mark.parametrize("case", CASES, ids=names)
def test_outputs_and_gradients(case: Case) -> None:
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("case", [MADE[1], MADE[4], STORED[3]], ids=names)
def test_half_precision(case: Case) -> None:
    assert_twin(case, torch.float16)


def test_launches_of_a_step() -> None:
    """One for an M-step and one for an E-step; one for the last table, and those before in that of parents."""
    with dry_run() as launches:
        run(TritonFit, MADE[2], MADE[2].draw("cpu"), torch.float32)
    forward, children = ["moments", "normaliser"], ["child_gradients", "weight_gradients"]
    expected = [*forward * 2, "moments", "last_slopes", *[*children, "parent_gradients"] * 2, *children]
    assert [kernel.fn.__name__ for kernel, *_ in launches] == expected


def test_walks_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments of chunks merge, whatever their length."""
    monkeypatch.setattr(plan, "moments_walk", lambda source: Walk(2, 2, 4, 2, 1))
    monkeypatch.setattr(plan, "parents_walk", lambda source: (Walk(1, 1, 8, 2, 1), {}))
    monkeypatch.setattr(plan, "weights_walk", lambda source, chunks: Walk(4, 2, 2, 1, 1))
    assert_twin(Case(3, 7, 1, 2, 2, 2, 5, start=True, betas="ij", bias=True), torch.float32)
    assert_twin(Case(2, 1, 7, 2, 2, 2, 5), torch.float32)


@pytest.mark.parametrize("case", [MADE[1], MADE[6], MADE[10], STORED[4]], ids=names)
def test_more_children_and_parents_than_lanes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in {"LANES": 2, "FINISHERS": 1, "AHEAD": 2, "WHOLE": 1}.items():
        monkeypatch.setattr(plan, name, most)
    plan.walk_batch.cache_clear()
    assert_twin(case, torch.float32)
    plan.walk_batch.cache_clear()


@pytest.mark.parametrize("case", [STORED[2], STORED[4], STORED[5]], ids=names)
def test_stored_votes_a_few_examples_at_a_time(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "STORED", 0)
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("case", [Case(2, 5, 1, 2, 2, 2, 5), Case(2, 5, 1, 1, 6, 2, 7)], ids=["made", "stored"])
def test_large_logits_round_but_their_gradients_do_not(case: Case) -> None:
    """Z near -900 is known to 3e-5, and couplings sum to 1 as well as that; benefits near 300 still cancel."""
    x = case.draw("cpu")
    x["offset"] -= 3000
    x["cost"] += 300 / (case.c * case.h)
    assert is_stored(x["weight"]) == (case.d == 6)
    actual, expected = run(TritonFit, case, x, torch.float32), run(Fit, case, x, torch.float64)
    name = "gradient of offset"
    assert_near(actual[name], expected[name], TOLERANCE[torch.float32].gradient, name)


def test_parents_may_share_what_is_learned() -> None:
    """Layers that make any number of parents expand one number for all of them."""
    case = Case(2, 5, 1, 2, 2, 2, 5)
    x = case.draw("cpu")
    x |= {name: x[name][:1].expand(case.j) for name in ("offset", "cost")}
    actual, expected = run(TritonFit, case, x, torch.float32), run(Fit, case, x, torch.float64)
    for name in ("logit 1", "gradient of offset", "gradient of cost"):
        assert_near(actual[name], expected[name], TOLERANCE[torch.float32].gradient, name)


def test_couplings() -> None:
    case = Case(2, 3, 1, 2, 2, 2, 5)
    x = case.draw("cpu")
    votes, parents = Votes(x["u"], x["weight"]), (torch.randn(2, 5), torch.randn(2, 5, 4), torch.rand(2, 5, 4) + 0.5)
    assert_near(TritonFit(votes, x["gate"]).couplings(*parents), Fit(votes, x["gate"]).couplings(*parents))


def test_keeps_no_votes_nor_couplings() -> None:
    """The graph keeps tensors of children and of parents, none of both."""
    b, i, j = 3, 40, 24
    u, weight = torch.randn(b, 1, i, 2, 2, requires_grad=True), torch.randn(j, 2, 1, 2, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        TritonFit(Votes(u, weight), torch.rand(b, i)).route(Rule((1.0, 1.0)), EPS)
    assert 0 < max(kept) < b * i * j


IMAGES = [(2, (3, 3), (2, 1), "positions"), (2, (2, 4), (2, 2), "types"), (1, (3, 3), (1, 2), "types")]


@pytest.mark.parametrize(("types", "size", "window", "over"), IMAGES)
def test_children_in_an_image(
    types: int, size: tuple[int, int], window: tuple[int, int], over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read where they lie, one example after the other on the way back, whatever the layout of the image."""
    monkeypatch.setattr(plan, "examples_at_once", lambda *sizes: 1)
    assert_image_twin(torch.randn(2, types, 4, *size).permute(0, 1, 3, 4, 2), 5, window, over)


def test_says_what_it_cannot_do() -> None:
    def votes(c: int = 1, d: int = 2, h: int = 2, j: int = 9, dtype: torch.dtype = torch.float32) -> Votes:
        return Votes(torch.zeros(1, 3, 1, c, d, dtype=dtype), torch.zeros(j, d, 3, h, dtype=dtype))

    assert supported(votes(), over_parents) is None
    assert supported(votes(), OverPositions(covered(2, 2, 1, 1), 4, (2, 2, 1, 1))) is None
    assert "grid" in str(supported(votes(), OverPositions(covered(2, 2, 1, 1), 4)))
    assert "float64" in str(supported(votes(dtype=torch.float64)))
    assert "softmax" in str(supported(votes(), masked(over_parents, torch.ones(3, 9, dtype=torch.bool))))
    assert "65" in str(supported(votes(h=65)))
    assert supported(votes(c=8, d=8, h=8)) is None
    assert supported(votes(c=1, d=512, h=64)) is None
    assert "patches" in str(supported(Windows(torch.zeros(1, 3, 1, 1, 36), torch.zeros(9, 6, 3, 6), 6, 1, 1)))
    assert "empty" in str(supported(votes(j=0)))
    with pytest.raises(ValueError, match="backend='matrix'"):
        TritonFit(votes(h=65), torch.ones(1, 3))
