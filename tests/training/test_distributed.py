"""Gradients that travel in buckets: the mean over processes, whatever order they come in, and the step around them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from flashcaps.nn.backbones import ChannelsLast
from flashcaps.training.distributed import GradientBuckets, Workers, leave_workers

from ..fake_data import small_step


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def loss_of(model: nn.Sequential, rank: int) -> Tensor:
    """The first layer is used by no one."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))
    return model[1:](x).square().mean()


def averaged(workers: Workers) -> tuple[int, Tensor, list[Tensor | None]]:
    """(buckets sent before the backward pass was done, loss, gradients)."""
    model, rank = network(), workers.rank
    buckets = GradientBuckets(list(model.parameters()), size=40)
    assert len(buckets.buckets) > 3
    for _ in range(2):  # a second step begins anew
        model.zero_grad()
        (loss_of(model, rank) / 2).backward()  # a part that comes before, whose gradients stay here
        buckets.begin()
        loss = loss_of(model, rank) / 2
        loss.backward()
        early, total = len(buckets.sent), loss.detach() * 2
        buckets.finish(total)
    return early, total, [p.grad for p in model.parameters()]


def test_two_processes_have_the_mean(tmp_path: Path) -> None:
    from ..faults.test_machines import on_ranks  # needs the command line's packages, which GPU machines may lack

    model = network()
    loss = (loss_of(model, 0) + loss_of(model, 1)) / 2
    loss.backward()
    for early, total, grads in on_ranks(averaged, tmp_path):
        assert early > 0
        torch.testing.assert_close(total, loss.detach())
        for g, p in zip(grads, model.parameters(), strict=True):
            assert g is None if p.grad is None else torch.allclose(g, p.grad, atol=1e-7)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    leave_workers()


def steps(device: str, *overrides: str) -> list[Tensor]:
    """The weights after six steps, on a GPU captured."""
    step, plan = small_step(*overrides, device=device)
    for k in range(6):
        step(plan.index[k], plan.noise[k], k)
    return [p.detach().cpu() for p in step.parameters]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_group_of_one_takes_the_same_steps(
    device: str, parts: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChannelsLast, "device", device)  # gradients of convolutions lie in another order, too
    alone = steps(device, f"accumulate={parts}")
    request.getfixturevalue("group")
    for x, y in zip(steps(device, f"accumulate={parts}"), alone, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
