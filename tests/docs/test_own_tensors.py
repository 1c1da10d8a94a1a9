"""A layer inside a user module trains, exports and runs under DDP; padding and the order of a set count for nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from flashcaps import DenseCapsules, PrimaryCapsules
from flashcaps.deploy.export import export_model

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


def test_it_exports(tmp_path: Path) -> None:
    assert export_model(Net("attention").eval(), tmp_path / "net.pt2", image=(1, 16, 16)).difference <= 1e-5


def work(rank: int, world: int, folder: str) -> None:
    """One step of one process, its weights saved."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net("em")
    parallel = DistributedDataParallel(net)
    x, y = batch(8)
    F.cross_entropy(parallel(x[rank::world]), y[rank::world]).backward()
    torch.save({name: p.grad for name, p in net.named_parameters()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_it_runs_under_ddp(tmp_path: Path) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mp.start_processes(work, (2, str(tmp_path)), nprocs=2, start_method="spawn")
    torch.manual_seed(0)
    net, (x, y) = Net("em"), batch(8)
    F.cross_entropy(net(x), y).backward()
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, p in net.named_parameters():
            assert p.grad is not None
            torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("routing", ["attention", "dynamic", "em", "heinsen"])
def test_neither_padding_nor_the_order_of_a_set_counts(routing: str) -> None:
    layer = DenseCapsules(routing, in_capsules=None, in_dim=6, out_capsules=4, out_dim=5)
    tokens, mask = torch.randn(2, 9, 6), torch.ones(2, 9)
    mask[0, 5:] = 0
    activation = mask.logit() if routing == "heinsen" else mask
    masked, alone = layer(tokens, activation), layer(tokens[:1, :5])
    torch.testing.assert_close(masked.pose[:1], alone.pose, rtol=1e-4, atol=1e-6)
    whole = layer(tokens[1:])
    torch.testing.assert_close(masked.pose[1:], whole.pose, rtol=1e-4, atol=1e-6)
    assert (layer(tokens[:1]).pose - alone.pose).abs().max() > 1e-3  # unmasked, the padding would count
    points = tokens.repeat(1, 3, 1)
    shuffled = points[:, torch.randperm(27)]
    torch.testing.assert_close(layer(points).pose, layer(shuffled).pose, rtol=1e-4, atol=1e-5)
