"""Ranks that talk over the loopback interface as machines would over a network, and hand back what they computed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashcaps.data import MultiMNIST
from flashcaps.models import create_model
from flashcaps.training.batches import Batch, ImageStream, PairStream, Share
from flashcaps.training.distributed import Workers, join_workers, leave_workers
from flashcaps.training.recipe import Recipe
from flashcaps.training.step import TrainStep
from tests.fake_data import fake_split, small_recipe
from tests.faults.child import FORKS, LIMIT_S

GLOBAL_BATCH = 16
ROUTINGS = ("dynamic", "em", "attention", "heinsen", "discriminative")


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def on_ranks(work: Callable[[Workers], Any], folder: Path, world: int = 2, **more: str) -> list[Any]:
    """work(workers) of every rank, each a process of its own, over gloo."""
    where = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
             "GLOO_SOCKET_IFNAME": "lo", **more}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{rank}.pt" for rank in range(world)]
    processes: list[Any] = [FORKS.Process(target=_work, args=(work, where | {"RANK": str(rank)}, file))
                            for rank, file in enumerate(files)]  # fmt: skip
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * world
    return [torch.load(file, weights_only=True) for file in files]


def _work(work: Callable[[Workers], Any], where: dict[str, str], out: Path) -> None:
    os.environ.update(where)
    torch.set_num_threads(1)
    if where["RANK"] == "0":
        time.sleep(float(where.get("FIRST_IS_LATE", "0")))
    torch.save(work(join_workers("cpu")), out)
    leave_workers()


def recipe_of(routing: str) -> Recipe:
    rate = ("model.options.rate=0.001",) if routing == "discriminative" else ()
    return small_recipe(f"model.routing={routing}", "optimiser.kind=sgd", "lr=0.01", "schedule.kind=constant", *rate)


class DoubleStream(ImageStream):
    """In float64, where a sum does not depend on its order to six digits."""

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        batch = super().batch(index, noise)
        return batch._replace(inputs=batch.inputs.double())


def steps(workers: Workers, routing: str, count: int) -> dict[str, Any]:
    """`count` steps of the small recipe; the averaged gradients of the last, weights and buffers after it."""
    recipe = recipe_of(routing)
    share = Share(GLOBAL_BATCH // workers.world, workers.rank, workers.world)
    stream = DoubleStream(fake_split(64, 10, (1, 28, 28)), recipe.augment, share, 10, 0)
    torch.manual_seed(0)
    model = create_model(recipe.model.name, **recipe.model.overrides).double()
    step, plan = TrainStep(model, stream, recipe, "top1", workers), stream.plan(0)
    for k in range(count):
        step(plan.index[k], plan.noise[k], k)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"gradients": gradients, "state": model.state_dict()}


def ranks_sum(workers: Workers) -> float:
    return float(workers.summed(torch.tensor(float(workers.rank + 1))))


def pairs(workers: Workers) -> list[Any]:
    """[images, targets, places] of this rank's first step of MultiMNIST."""
    stream = PairStream(MultiMNIST(fake_split(40, 10, (1, 28, 28))), Share(4, workers.rank, workers.world), 3)
    plan = stream.plan(0)
    batch = stream.batch(plan.index[0], plan.noise[0])
    return [batch.inputs, batch.targets, plan.index]
