"""Ranks that talk over the loopback interface, as machines over a network, train as one process would."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from flashcaps.models import create_model
from flashcaps.routing import ROUTING
from flashcaps.training.batches import Batch, ImageStream, Share
from flashcaps.training.distributed import Workers, join_workers, leave_workers
from flashcaps.training.step import TrainStep
from tests.conftest import assert_near
from tests.fake_data import CPU, fake_split, small_recipe
from tests.faults.child import FORKS, LIMIT_S, free_port, metrics, prepare, rank_environments, train_arguments

GLOBAL_BATCH = 16


def on_ranks(work: Callable[[Workers], Any], folder: Path, world: int = 2, **more: str) -> list[Any]:
    """work(workers) of every rank, each a process of its own, over gloo."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{rank}.pt" for rank in range(world)]
    processes: list[Any] = [FORKS.Process(target=_work, args=(work, where | more, file))
                            for where, file in zip(rank_environments(world), files, strict=True)]  # fmt: skip
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


class DoubleStream(ImageStream):
    """In float64, where a sum does not depend on its order to six digits."""

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        batch = super().batch(index, noise)
        return batch._replace(inputs=batch.inputs.double())


def steps(workers: Workers, count: int = 3) -> dict[str, Any]:
    """(averaged gradients of the last of `count` steps, weights and buffers after it), for every algorithm."""
    found = {}
    for routing in ROUTING:
        rate = ("model.options.rate=0.001",) if routing == "discriminative" else ()
        recipe = small_recipe(f"model.routing={routing}", "optimiser.kind=sgd", "lr=0.01", "schedule.kind=constant",
                              *rate)  # fmt: skip
        share = Share(GLOBAL_BATCH // workers.world, workers.rank, workers.world)
        stream = DoubleStream(fake_split(64, 10, (1, 28, 28)), recipe.augment, share, 10, 0)
        torch.manual_seed(0)
        model = create_model(recipe.model.name, **recipe.model.overrides).double()
        step, plan = TrainStep(model, stream, recipe, "top1", workers), stream.plan(0)
        for k in range(count):
            step(plan.index[k], plan.noise[k], k)
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found[routing] = gradients, model.state_dict()
    return found


def ranks_sum(workers: Workers) -> float:
    return float(workers.summed(torch.tensor(float(workers.rank + 1))))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_two_ranks_average_to_the_gradients_of_one_process(tmp_path: Path) -> None:
    """Of every algorithm; nn/test_coefficients.py compares the steps of discriminative's coefficients."""
    alone, (first, second) = steps(Workers(CPU)), on_ranks(steps, tmp_path)
    for routing, (gradients, _) in alone.items():
        for rank in (first, second):
            assert rank[routing][0].keys() == gradients.keys()
            for name, gradient in gradients.items():
                assert_near(rank[routing][0][name], gradient, 1e-6, f"{routing} {name}")
        for name, x in first[routing][1].items():
            assert torch.equal(x, second[routing][1][name]), f"{routing} {name}"


def test_those_who_start_again_do_not_meet_the_dead(tmp_path: Path) -> None:
    # torchrun's, which outlives both starts
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert on_ranks(ranks_sum, tmp_path / "first", **where) == [3.0, 3.0]
    # the second rank is there before the first has overwritten what it left in the store
    assert on_ranks(ranks_sum, tmp_path / "again", **where, FIRST_IS_LATE="1") == [3.0, 3.0]


@pytest.mark.slow
def test_two_machines_with_a_torchrun_each_train_as_one_process(tmp_path: Path) -> None:
    prepare(tmp_path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "GLOO_SOCKET_IFNAME": "lo"}
    port = free_port()

    def machine(node: int, out: str) -> subprocess.Popen[bytes]:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node_rank={node}",
                  "--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={port}"]  # fmt: skip
        # the second machine has its own disk, on which nothing of the run may be looked for
        command = [*launch, "-m", "flashcaps", *train_arguments(tmp_path, out, "batch=8")]
        return subprocess.Popen(command, env=environment)

    machines = [machine(0, "two"), machine(1, "elsewhere")]
    assert [m.wait(240) for m in machines] == [0, 0]
    one = [sys.executable, "-m", "flashcaps", *train_arguments(tmp_path, "one", "batch=16")]
    assert subprocess.run(one, env=environment).returncode == 0
    assert not (tmp_path / "elsewhere").exists()
    losses = [[m["loss"] for m in metrics(tmp_path / n) if m["kind"] == "train"] for n in ("one", "two")]
    # sums are taken in another order, and Adam divides by small numbers: 0.1 % after twelve steps
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
