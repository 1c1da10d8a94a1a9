"""A layer inside a user module trains and runs under DDP."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from flashcaps import DenseCapsules, PrimaryCapsules
from flashcaps.training.distributed import Workers
from tests.faults.test_machines import on_ranks

FORMS = {"attention": "norm", "discriminative": "squash", "dynamic": "squash", "em": "sigmoid", "heinsen": "score"}


class Net(nn.Module):
    """What a user writes: convolution, capsules, linear."""

    def __init__(self, routing: str = "dynamic") -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, 2)
        self.primary = PrimaryCapsules(8, types=4, dim=4, kernel=3, stride=2, form=FORMS[routing])
        self.capsules = DenseCapsules(routing, in_capsules=36, in_dim=4, out_capsules=5, out_dim=4, iterations=2)
        self.linear = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.capsules(self.primary(self.conv(x).relu())).pose.flatten(1))


def batch(count: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images whose bright row tells the class."""
    x = torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed)) * 0.2
    y = torch.arange(count) % 3
    for k in range(count):
        x[k, :, 5 * int(y[k]) : 5 * int(y[k]) + 4] += 0.8
    return x, y


@pytest.mark.parametrize("routing", FORMS)
def test_it_trains(routing: str) -> None:
    net, (x, y) = Net(routing), batch(24)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    assert all(p.grad is not None for p in net.capsules.parameters())
    x, y = batch(30, seed=1)
    assert (net.eval()(x).argmax(1) == y).float().mean() >= 0.9


def gradients(workers: Workers) -> dict[str, Tensor | None]:
    """Of one step on this rank's part of a batch."""
    torch.manual_seed(0)
    net, (x, y) = Net("em"), batch(8)
    parallel = DistributedDataParallel(net) if workers.world > 1 else net
    F.cross_entropy(parallel(x[workers.rank :: workers.world]), y[workers.rank :: workers.world]).backward()
    return {name: p.grad for name, p in net.named_parameters()}


def test_it_runs_under_ddp(tmp_path: Path) -> None:
    expected = gradients(Workers(torch.device("cpu")))
    for found in on_ranks(gradients, tmp_path):
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
