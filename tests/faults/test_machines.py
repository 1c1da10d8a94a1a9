"""More than one machine: gradients, coefficients and data are those of one process with the whole batch."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from flashcaps.training.distributed import Workers
from tests.conftest import assert_near
from tests.faults.child import metrics, prepare, train_arguments
from tests.faults.machines import ROUTINGS, free_port, on_ranks, pairs, ranks_sum, steps

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("routing", ROUTINGS)
def test_two_ranks_average_to_the_gradients_of_one_process(routing: str, tmp_path: Path) -> None:
    alone = steps(Workers(CPU), routing, 1)
    both = on_ranks(functools.partial(steps, routing=routing, count=1), tmp_path)
    for rank in both:
        assert rank["gradients"].keys() == alone["gradients"].keys()
        for name, gradient in alone["gradients"].items():
            assert_near(rank["gradients"][name], gradient, 1e-6, name)


def test_discriminative_coefficients_stay_bit_equal_across_ranks(tmp_path: Path) -> None:
    alone = steps(Workers(CPU), "discriminative", 4)["state"]["capsules.layers.0.coefficients"]
    first, second = on_ranks(functools.partial(steps, routing="discriminative", count=4), tmp_path)
    mine, its = (rank["state"]["capsules.layers.0.coefficients"] for rank in (first, second))
    assert torch.equal(mine, its)
    assert_near(mine, alone, 1e-6)
    assert not torch.equal(mine, torch.full_like(mine, 0.1))  # they moved
    for name in first["state"]:
        assert torch.equal(first["state"][name], second["state"][name]), name


def test_multimnist_is_shared_out_by_rank_and_seed(tmp_path: Path) -> None:
    parts = on_ranks(pairs, tmp_path, world=3)
    places = torch.cat([part[2].flatten() for part in parts])
    assert len(places.unique()) == len(places)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert not torch.equal(parts[a][0], parts[b][0])
    again = pairs(Workers(CPU, rank=1, world=3))
    assert torch.equal(again[0], parts[1][0])
    assert torch.equal(again[1], parts[1][1])


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
