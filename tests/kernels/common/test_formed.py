"""Votes formed a block of children at a time, and gradients from those of votes."""

import pytest
import torch

from flashcaps.kernels.common import formed
from flashcaps.kernels.common.formed import Gradients, blocks, split, takes
from flashcaps.kernels.votes import Votes

from ...conftest import assert_near


def test_what_the_kernels_take() -> None:
    u, weight = torch.randn(4, 3, 1, 2, 4), torch.randn(5, 4, 3, 6)
    assert takes(Votes(u, weight))
    assert not takes(Votes(u.expand(4, 3, 2, 2, 4), weight))
    assert not takes(Votes(u[:0], weight))
    assert not takes(Votes(u, torch.randn(600, 4, 3, 6)))


def test_blocks_of_several_children_stay_below_the_layers_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formed, "SIZE", 1)
    for children, j, at_once in ((100, 2, 8), (20, 2, 5), (10, 2, 2), (3, 9, 1)):
        u, weight = torch.empty(64, children, 1, 1, 4), torch.empty(j, 4, children, 4)
        found = [block.poses.shape[0] for block in blocks(u, weight)]
        assert found[0] == at_once
        assert sum(found) == children


def test_split_sums_of_weight_gradients() -> None:
    u, weight = torch.randn(256, 3, 1, 2, 4), torch.randn(5, 4, 3, 6)
    assert split(512, 4) > 1
    into, (block,) = Gradients(u, weight), blocks(u, weight)
    gv = torch.randn(block.votes.shape)
    into.take(block, gv)
    gu, gw = into.laid_out_like(u, weight)
    of_votes = gv.double().view(3, 256, 2, 5, 6)
    assert_near(gw, torch.einsum("gbcjh,bgcd->jdgh", of_votes, u[:, :, 0].double()))
    assert_near(gu[:, :, 0], torch.einsum("gbcjh,jdgh->bgcd", of_votes, weight.double()))
