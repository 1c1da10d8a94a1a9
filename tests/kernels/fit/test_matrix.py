"""Gaussians fitted block by block, against moments of all votes at once."""

import pytest
import torch
from torch import Tensor

from flashcaps.kernels import votes as _blocks
from flashcaps.kernels.fit.matrix import Fit, block_moments, merge, spread_of_attended
from flashcaps.kernels.votes import Votes
from flashcaps.routing.math import over_parents

from ...conftest import assert_near
from ...layer_cases import make_votes
from ..twins import TINY, elsewhere

EPS = 0.01


def draw(b: int = 2, g: int = 7, r: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Votes, Tensor]:
    votes = make_votes(torch.randn(b, g, r, 2, 3, dtype=dtype), torch.randn(5, g, 3, 2, dtype=dtype))
    return votes, torch.rand(b, g * r, dtype=dtype)


def moments(use: Tensor, v: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor, Tensor]:
    """Total, mean and variance from their definitions."""
    n = use.sum(1)
    mean = (use[..., None] * v).sum(1) / (n + eps)[..., None]
    return n, mean, (use[..., None] * (v - mean[:, None]) ** 2).sum(1) / (n + eps)[..., None] + eps


@pytest.mark.parametrize("cuts", [[7], [1] * 7, [3, 4], [6, 1]])
def test_merged_blocks_have_the_moments_of_the_whole(cuts: list[int]) -> None:
    v, use = torch.randn(2, 7, 5, 4, dtype=torch.float64), torch.rand(2, 7, 5, dtype=torch.float64)
    parts = [block_moments(w, x) for w, x in zip(use.split(cuts, 1), v.split(cuts, 1), strict=True)]
    for actual, expected in zip(merge(parts, EPS), moments(use, v), strict=True):
        assert_near(actual, expected)


def test_a_block_nobody_is_assigned_from_changes_nothing() -> None:
    v, use = torch.randn(2, 6, 5, 4, dtype=torch.float64), torch.rand(2, 6, 5, dtype=torch.float64)
    use[:, 3:] = 0
    parts = [block_moments(w, x) for w, x in zip(use.split(3, 1), v.split(3, 1), strict=True)]
    for actual, expected in zip(merge(parts, EPS), moments(use[:, :3], v[:, :3]), strict=True):
        assert_near(actual, expected)


def test_variances_far_from_zero_do_not_cancel() -> None:
    """Votes near 1000 that differ by 0.01: expanded second moments in fp32 would leave nothing."""
    exact = 1000 + 0.01 * torch.randn(1, 64, 1, 3, dtype=torch.float64)
    v, use = exact.float(), torch.ones(1, 64, 1)
    parts = [block_moments(w, x) for w, x in zip(use.split(16, 1), v.split(16, 1), strict=True)]
    variance = merge(parts, 0.0)[2]
    assert_near(variance / v.double().var(1, correction=0), 1.0, 1e-2)


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("budget", [None, TINY])
@pytest.mark.parametrize(("g", "r"), [(7, 1), (1, 7), (2, 3), (1, 1)])
@pytest.mark.parametrize("first", [True, False])
def test_fit(
    first: bool, g: int, r: int, budget: dict[str, int] | None, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_cpu:
        elsewhere(monkeypatch)
    if budget is not None:
        monkeypatch.setattr(_blocks, "BUDGET", budget)
    votes, gate = draw(2, g, r)
    double = {"dtype": torch.float64}
    start, use, ignore = torch.randn(g * r, 5, **double), torch.randn(g * r, 5, **double), torch.randn(5, **double)
    parents = (
        ()
        if first
        else (torch.randn(2, 5, **double), torch.randn(2, 5, 4, **double), torch.rand(2, 5, 4, **double) + 0.5)
    )
    v = votes.explicit()
    logits = start.expand(2, g * r, 5)
    if parents:
        prior, mean, variance = parents
        normal = torch.distributions.Normal(mean[:, None], variance[:, None].sqrt())
        logits = prior[:, None] + normal.log_prob(v).sum(-1)
    coupling = logits.softmax(-1)
    share = gate[..., None] * coupling
    fit = Fit(votes, gate, start=start, betas=(use, ignore))
    n, mean, variance, score = fit(EPS, *parents)
    for actual, expected in zip((n, mean, variance), moments(share, v), strict=True):
        assert_near(actual, expected)
    assert score is not None
    assert_near(score, (use * share).sum(1) - (ignore * (gate[..., None] - share)).sum(1))
    assert_near(fit.couplings(*parents), coupling)


@pytest.mark.parametrize("budget", [None, TINY])
@pytest.mark.parametrize("asked", [True, False])
def test_spread_of_attended(asked: bool, budget: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if budget is not None:
        monkeypatch.setattr(_blocks, "BUDGET", budget)
    votes, _ = draw()
    v = votes.explicit()
    query = torch.randn(2, 5, 4, dtype=torch.float64)
    agreement = torch.einsum("bijd,bjd->bij", v, query) if asked else torch.zeros(2, 7, 5, dtype=torch.float64)
    weight, variance = spread_of_attended(votes, query if asked else None, over_parents, EPS)
    n, _, expected = moments(agreement.softmax(-1), v)
    assert_near(weight, n)
    assert_near(variance, expected)
