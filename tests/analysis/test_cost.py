"""Memory counted by hand where it can be; times are there for every algorithm, never compared."""

import sys

import torch
from torch import nn

from flashcaps.analysis.cost import cost, kept_bytes, step_time, variants
from flashcaps.models.base import Output
from flashcaps.routing import ROUTING
from flashcaps.training.batches import Batch


class Exponentials(nn.Module):
    """Keeps one result of exp for every repeat, and the last for the loss."""

    decoder = None

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.scale, self.repeats = nn.Parameter(torch.ones(1)), repeats

    def forward(self, images, chosen=None):
        x = images.flatten(1) * self.scale
        for _ in range(self.repeats):
            x = x.exp()
        return Output(x, None)


def test_bytes_kept_grow_by_what_exp_keeps():
    images, targets = torch.rand(4, 1, 2, 5), torch.zeros(4, dtype=torch.long)
    sizes = [kept_bytes(Exponentials(n), Batch(images, targets)) for n in (1, 2, 3)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == 4 * 10 * 4


def test_every_algorithm_is_measured(run):
    assert set(variants(run)) == set(ROUTING)
    data, _, caption = cost(run, iterations=(1, 2))
    assert set(data["cost"]) == set(ROUTING)
    assert set(data["cost"]["dynamic"]) == {1, 2}
    assert set(data["cost"]["discriminative"]) == {1}
    assert all(s > 0 and m > 0 for points in data["cost"].values() for s, m in points.values())
    assert "MiB" in caption


def test_a_slow_model_gets_fewer_points_its_own_first(run, monkeypatch):
    monkeypatch.setattr(sys.modules["flashcaps.analysis.cost"], "LIMIT_S", 0.0)  # the package names a function so
    data, _, _ = cost(run)
    assert set(data["cost"]) == {"dynamic"}
    assert set(data["cost"]["dynamic"]) == {1}


def test_step_time_of_every_algorithm(run):
    data, _, _ = step_time(run, repeats=1)
    assert set(data["seconds"]) == set(ROUTING)
    assert all(s > 0 for s in data["seconds"].values())
    assert data["iterations"]["dynamic"] == 3
