"""`flashcaps data`: a name gets a data set, `shard` makes shards, and a run trains on them as on any other data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from flashcaps.data.shards import open_shards

from flashcaps.cli import main
from flashcaps.training.batches import Share
from flashcaps.training.loader import open_sources
from flashcaps.training.recipe import make_recipe
from flashcaps.training.streaming import HeldShards, Reader, ShardStream

from ..own_pictures import write_pictures

CPU = torch.device("cpu")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main(words)
    return int(leave.value.code or 0)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("own")
    write_pictures(base / "pictures", 40, 14, 16)
    assert run("data", "shard", str(base / "pictures"), str(base / "shards"), "--samples", "5", "--size", "12") == 0
    return base / "shards"


def recipe(shards: Path, **train: object) -> dict[str, object]:
    return {
        "name": "own", "model": {"name": "capsnet_mnist", "backbone": {"channels": 8, "kernel": 3}, "decoder": False,
                                 "primary": {"types": 2, "dim": 4, "kernel": 3}},
        "data": {"name": "shards", "path": str(shards)},
        "train": {"epochs": 2, "batch": 4, "log_every": 1, "save_seconds": 0.0, **train},
    }  # fmt: skip


def test_pictures_become_shards(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = open_shards(shards), open_shards(shards, "test")
    assert (train.image, train.class_names) == ((3, 12, 12), ("bar", "disc", "ring"))
    assert len(train) + len(test) + len(open_shards(shards, "validation")) == 40
    assert max(unit.samples for unit in train.units) == 5


def test_a_name_still_gets_a_data_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("data", "mnits", "--data", str(tmp_path)) == 1
    assert "mnist" in capsys.readouterr().err
    assert run("data", "--help") == 0
    assert "shard" in capsys.readouterr().out


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_out_each_batch_of_the_plan(shards: Path, world: int) -> None:
    made = make_recipe(recipe(shards))
    streams = [open_sources(made, None, CPU, Share(4, rank, world)).train for rank in range(world)]
    assert all(isinstance(stream, ShardStream) for stream in streams)
    index = torch.stack([stream.plan(3).index for stream in streams], 1)  # (steps, world, B)
    places = index.flatten().tolist()
    assert len(set(places)) == len(places) == streams[0].steps * world * 4
    alone = open_sources(made, None, CPU, Share(4 * world)).train.plan(3).index
    assert torch.equal(index.flatten(1), alone[: len(index)])


def test_batches_read_ahead_are_those_read_alone(shards: Path) -> None:
    reader = Reader(open_shards(shards), (3, 12, 12), CPU)
    stream = ShardStream(reader, make_recipe(recipe(shards)).augment, Share(4), seed=0)
    plan = stream.plan(0)
    for k in (0, 1, 2, 4, 1, 5):  # in order, skipped, and back
        batch = stream.batch(plan.index[k], plan.noise[k])
        images, labels = reader(plan.index[k])
        assert torch.equal(batch.inputs, images / 255) or torch.allclose(batch.inputs, images / 255)
        assert torch.equal(batch.targets, labels)
    assert torch.equal(stream.batch(plan.index[2][:2], plan.noise[2][:2]).targets, reader(plan.index[2][:2])[1])


def test_held_parts_come_whole_and_in_order(shards: Path) -> None:
    held = HeldShards(Reader(open_shards(shards, "test"), (3, 12, 12), CPU), 8, 3)
    batches = list(held.batches(3))
    assert sum(len(b.targets) for b in batches) == len(held) == len(open_shards(shards, "test"))
    assert batches[0].inputs.shape[1:] == (3, 8, 8)
    assert len(held.some(2).targets) == 2


def test_a_run_that_stops_and_goes_on_ends_as_one_that_did_not(shards: Path, tmp_path: Path) -> None:
    """The second run is cut after five steps and resumed: the same weights, bit for bit."""
    from flashcaps.training.loop import RunOptions, train

    ends = []
    for name, stops in (("whole", ()), ("cut", (5,))):
        out = tmp_path / name
        for limit in (*stops, None):
            place = RunOptions("cpu", str(out), resume=limit is None and bool(stops))
            watch = Cut(limit)
            try:
                train(make_recipe(recipe(shards)), place, watch)
            except KeyboardInterrupt:
                assert limit == watch.at
        ends.append((out / "last.safetensors").read_bytes())
        assert json.loads((out / "result.json").read_text())["data"] == "shards"
    assert ends[0] == ends[1]


class Cut:
    """Told of every step, and stops the run at one."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.at = limit, 0

    def begin(self, title: str, total: int, at: int) -> None: ...

    def say(self, text: str) -> None: ...

    def progress(self, at: int, loss: float, error: float, images_s: float) -> None:
        self.at = at
        if at == self.limit:
            raise KeyboardInterrupt
