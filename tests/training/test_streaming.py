"""Pictures that stay on disk: the batches of pictures in memory, bit for bit, read a few batches ahead."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.data import to_float, user_images
from flashcaps.data.split import StoredImages
from flashcaps.training.batches import ImageStream, Share
from flashcaps.training.loader import open_sources
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.recipe import Recipe, make_recipe
from flashcaps.training.streaming import AHEAD, StreamedImages

from ..own_pictures import write_pictures

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), 60, 14, 16)


def recipe(path: Path, streaming: bool = True, **more: Any) -> Recipe:
    return make_recipe({
        "name": "own", "model": {"name": "capsnet_mnist", "backbone": {"channels": 8, "kernel": 3}, "decoder": False,
                                 "primary": {"types": 2, "dim": 4, "kernel": 3}},
        "data": {"name": "images", "path": str(path), "size": [12, 12], "streaming": streaming},
        "train": {"epochs": 2, "batch": 4, "log_every": 1, "save_seconds": 0.0}, **more,
    })  # fmt: skip


def stream(path: Path, share: Share = Share(4), **more: Any) -> StreamedImages:
    found = open_sources(recipe(path, **more), None, CPU, share).train
    assert isinstance(found, StreamedImages)
    return found


@pytest.mark.parametrize("augment", [{}, {"crop": 10, "flip": True, "alternate": True}, {"shift": 2, "mixup": 0.2}])
def test_batches_are_those_of_pictures_in_memory(folder: Path, augment: dict[str, Any]) -> None:
    streamed = open_sources(recipe(folder, augment=augment), None, CPU, Share(4))
    resident = open_sources(recipe(folder, streaming=False, augment=augment), None, CPU, Share(4))
    assert type(resident.train) is ImageStream
    assert isinstance(streamed.train, StreamedImages)
    for epoch in (0, 3):
        plans = [s.plan(epoch) for s in (streamed.train, resident.train)]
        for k in range(resident.train.steps):
            batches = [s.batch(p.index[k], p.noise[k])
                       for s, p in zip((streamed.train, resident.train), plans, strict=True)]  # fmt: skip
            assert torch.equal(batches[0].inputs, batches[1].inputs)
            assert torch.equal(batches[0].targets, batches[1].targets)
    for name in ("validation", "test"):
        parts = [list(getattr(s, name).batches(5)) for s in (streamed, resident)]
        assert [len(b.targets) for b in parts[0]] == [len(b.targets) for b in parts[1]]
        assert all(torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)
                   for a, b in zip(*parts, strict=True))  # fmt: skip
        assert torch.equal(getattr(streamed, name).some(3).inputs, getattr(resident, name).some(3).inputs)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_each_step_and_read_every_example_once(folder: Path, world: int) -> None:
    streams = [stream(folder, Share(12 // world, rank, world)) for rank in range(world)]
    index = torch.stack([s.plan(3).index for s in streams], 1)  # (steps, world, B)
    assert Counter(index.flatten().tolist()) == Counter(set(index.flatten().tolist()))
    assert index.numel() == 36  # of 42: the last 6 fill no step
    assert torch.equal(index.flatten(1), stream(folder, Share(12)).plan(3).index)  # so a run can resume with another


def test_the_order_depends_on_seed_and_epoch_alone(folder: Path) -> None:
    orders = [stream(folder, train={"batch": 4, "seed": seed}).plan(epoch).index.flatten().tolist()
              for seed in (0, 1) for epoch in (0, 1) for _ in range(2)]  # fmt: skip
    assert orders[::2] == orders[1::2]
    assert len({tuple(order) for order in orders}) == 4


def test_rows_may_be_skipped_repeated_and_cut(folder: Path) -> None:
    one = stream(folder)
    plan = one.plan(0)
    images = one.split.images
    for k in (0, 1, 2, 5, 1, 9):
        assert torch.equal(one.batch(plan.index[k], plan.noise[k]).inputs, to_float(images[plan.index[k]]))
    half = one.batch(plan.index[2][2:], plan.noise[2][2:])
    assert torch.equal(half.targets, one.split.labels[plan.index[2][2:]])
    one.plan(1)
    assert torch.equal(one.batch(plan.index[3], plan.noise[3]).targets, one.split.labels[plan.index[3]])


def test_each_picture_is_read_once_and_few_are_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    read, files = user_images.read_picture, []

    def watched(source: Any, channels: int = 0) -> Any:
        picture = read(source, channels)
        files.append(source)
        alive.add(picture.untyped_storage())
        return picture

    one = stream(folder, data={"name": "images", "path": str(folder), "size": [14, 16], "streaming": True})
    monkeypatch.setattr(user_images, "read_picture", watched)
    plan, most = one.plan(0), 0
    for k in range(one.steps):
        one.batch(plan.index[k], plan.noise[k])
        most = max(most, len(alive))
    assert Counter(files) == Counter(set(files))
    assert len(files) == one.steps * 4
    assert 4 < most <= (AHEAD + 1) * 4


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_pictures(tmp_path, 30, 12, 12)
    one = stream(tmp_path)
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:60])
    plan = one.plan(0)
    with pytest.raises(ValueError, match=r"\.png: not a whole picture .*remove or replace it"):
        one.batch(plan.index[0], plan.noise[0])


def test_what_cannot_be_streamed_is_refused(folder: Path) -> None:
    resized = recipe(folder, data={"name": "images", "path": str(folder), "streaming": True, "resize": 8})
    with pytest.raises(ValueError, match=r"data\.resize: .*use data\.size"):
        open_sources(resized, None, CPU, Share(4))
    with pytest.raises(ValueError, match=r"train\.capture: .*train\.capture=false"):
        open_sources(recipe(folder), None, torch.device("cuda"), Share(4))


def test_a_run_that_is_cut_and_resumed_ends_as_one_that_was_not(folder: Path, tmp_path: Path) -> None:
    ends = []
    for name, limit in (("whole", None), ("cut", 5)):
        out = tmp_path / name
        if limit is not None:
            with pytest.raises(KeyboardInterrupt):
                train(recipe(folder), RunOptions("cpu", str(out)), Cut(limit))
        outcome = train(recipe(folder), RunOptions("cpu", str(out), resume=limit is not None))
        assert outcome.result["data"] == "images"
        ends.append((out / "last.safetensors").read_bytes())
    assert ends[0] == ends[1]


class Cut:
    """Stops a run at a step."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def begin(self, title: str, total: int, at: int) -> None: ...

    def say(self, text: str) -> None: ...

    def progress(self, at: int, loss: float, error: float, images_s: float) -> None:
        if at == self.limit:
            raise KeyboardInterrupt


def test_the_model_is_built_for_the_pictures(folder: Path) -> None:
    found = open_sources(recipe(folder, augment={"crop": 10}), None, CPU, None)
    assert found.train is None
    assert found.options == {"classes": 3, "image": (3, 10, 10)}
    assert isinstance(found.dataset.train.images, StoredImages)
