"""Blocks of children, and functions recomputed in the backward pass."""

import pytest
import torch
from torch import Tensor

from flashcaps.kernels import votes as blocks
from flashcaps.kernels.votes import Votes, children_per_block, covered, recompute, split_children
from flashcaps.routing.math import OverPositions, over_parents

from ..conftest import assert_near
from ..layer_cases import make_votes


def votes(groups: int, repeats: int) -> Votes:
    return make_votes(
        torch.randn(2, groups, repeats, 1, 3, dtype=torch.float64), torch.randn(4, groups, 3, 2, dtype=torch.float64)
    )


def test_children_fit_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """But blocks are never so many that merging them takes more than a block, and each has a child."""
    monkeypatch.setattr(blocks, "BUDGET", {"cpu": 100, "cuda": 1})
    assert children_per_block(votes(50, 1), 10, over_parents) == 10
    assert children_per_block(votes(500, 1), 10, over_parents) == 22  # the square root of 500
    monkeypatch.setattr(blocks, "BUDGET", {"cpu": 1, "cuda": 1})
    assert children_per_block(votes(7, 1), 10, over_parents) >= 1
    assert children_per_block(votes(7, 1), 0, over_parents) >= 1  # an empty batch


def test_a_kernel_of_children_stays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = OverPositions(covered(4, 4, 2, 1), 16)
    for budget in (1, 100, 1000):
        monkeypatch.setattr(blocks, "BUDGET", {"cpu": budget, "cuda": budget})
        n = children_per_block(votes(500, 1), 10, softmax)
        assert n > 0
        assert n % 4 == 0


@pytest.mark.parametrize(("groups", "repeats"), [(7, 1), (1, 7), (3, 5), (1, 1)])
@pytest.mark.parametrize("children", [1, 2, 6, 100])
def test_blocks_make_up_the_whole(groups: int, repeats: int, children: int) -> None:
    whole = votes(groups, repeats)
    parts = whole.split(children)
    assert_near(torch.cat([block.explicit() for block in parts], 1), whole.explicit(), 0.0)
    if groups == 1 or repeats == 1:
        assert max(block.shape[1] for block in parts) <= children


def test_tensors_of_children_are_cut_like_the_blocks() -> None:
    parts = votes(5, 2).split(4)
    x = torch.arange(10).view(1, 10)
    assert [part.tolist() for part in split_children(x, parts, 1)] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]]
    same = torch.ones(1, 3)
    assert all(part is same for part in split_children(same, parts, 0))
    assert split_children(None, parts, 0) == [None, None, None]


def test_recompute_runs_again_in_the_backward_pass_only_if_there_is_one() -> None:
    calls = 0

    def square(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * x

    x = torch.tensor([3.0], requires_grad=True)
    with torch.no_grad():
        recompute(square, x)
    recompute(square, x.detach())
    assert calls == 2
    y = recompute(square, x)
    assert calls == 3
    y.backward()
    assert calls == 4
    assert x.grad is not None
    assert x.grad.item() == 6.0
