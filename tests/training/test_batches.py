"""Batches and where they come from: shared among processes, augmented by numbers drawn ahead, held out as they are."""

import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps.data import MultiMNIST, to_float, user_images
from flashcaps.data.split import StoredImages
from flashcaps.training import loader as sources
from flashcaps.training.batches import AHEAD, Augmentation, ImageStream, PairStream, Share, StreamedImages, held_images
from flashcaps.training.loader import open_sources
from flashcaps.training.recipe import Augment, Recipe, make_recipe

from ..fake_data import CPU, fake_dataset, fake_load_data, fake_split, small_recipe
from ..own_pictures import write_pictures


def test_an_epoch_shows_each_example_once_and_processes_share_it() -> None:
    split = fake_split(43, 10, (1, 28, 28))  # the last 3 of an order fill no step
    whole, other = (ImageStream(split, Augment(shift=1), Share(8), 10, seed) for seed in (5, 6))
    parts = [ImageStream(split, Augment(shift=1), Share(4, rank, 2), 10, 5) for rank in (0, 1)]
    for epoch in (0, 1):
        plan = whole.plan(epoch)
        assert len(set(plan.index.flatten().tolist())) == plan.index.numel() == 40
        assert not torch.equal(other.plan(epoch).index, plan.index)
        both = [p.plan(epoch) for p in parts]
        assert torch.equal(torch.cat([p.index for p in both], 1), plan.index)
        assert torch.equal(torch.cat([p.noise for p in both], 1), plan.noise)
    assert not torch.equal(whole.plan(0).index, whole.plan(1).index)
    assert not torch.equal(whole.plan(0).noise, whole.plan(1).noise)


def test_alternating_flips_show_both_faces_equally_often() -> None:
    split = fake_split(40, 10, (1, 28, 28))
    stream = ImageStream(split, Augment(shift=1, flip=True, alternate=True), Share(8), 10, 5)
    mirrored = torch.zeros(4, 40, dtype=torch.bool)
    for epoch in range(4):
        plan = stream.plan(epoch)
        mirrored[epoch, plan.index.flatten()] = plan.noise[..., 2].flatten() < 0.5
    assert torch.equal(mirrored[0], ~mirrored[1])
    assert torch.equal(mirrored[0], mirrored[2])
    assert torch.equal(mirrored[1], mirrored[3])
    assert 5 < int(mirrored[0].sum()) < 35
    with pytest.raises(ValueError, match=r"augment\.alternate: expected augment\.flip=true"):
        small_recipe("alternate=true")


def test_pairs_are_new_in_every_epoch_and_shared() -> None:
    pairs = MultiMNIST(fake_split(40, 10, (1, 28, 28)))
    whole = PairStream(pairs, Share(8), 3)
    parts = [PairStream(pairs, Share(4, rank, 2), 3) for rank in (0, 1)]
    first, second = whole.plan(0).index, whole.plan(1).index
    assert not set(first.flatten().tolist()) & set(second.flatten().tolist())
    assert torch.equal(torch.cat([p.plan(1).index for p in parts], 1), second)
    batch = whole.batch(first[0], whole.plan(0).noise[0])
    assert batch.inputs.shape == (8, 1, 36, 36)
    assert batch.pictures.shape == (8, 2, 1, 36, 36)
    assert (batch.targets.sum(1) == 2).all()


def test_augmentation_uses_each_number_for_one_thing() -> None:
    spec = Augment(shift=1, crop=24, padding=2, flip=True, brightness=0.2, contrast=(0.5, 1.5), cutout=5, mixup=0.2)
    augment = Augmentation(spec)
    assert augment.columns == 11
    images, labels = fake_split(6, 10, (1, 28, 28)).images, torch.arange(6)
    noise = torch.rand(6, 11)
    out, targets = augment(images, labels, noise, 10)
    assert out.shape == (6, 1, 24, 24)
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    for column in range(11):
        other = noise.clone()
        other[:, column] = (other[:, column] + 0.5) % 1
        assert not torch.equal(augment(images, labels, other, 10)[0], out), column


def test_augmentation_reaches_both_ends_of_its_ranges() -> None:
    """Numbers of 0, and as near to 1 as they come."""
    images, labels = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64)

    def ends(spec: Augment) -> list[Tensor]:
        augment = Augmentation(spec)
        noises = (torch.full((1, augment.columns), u) for u in (0.0, 1 - 2.0**-24))
        return [(augment(images, labels, u, 10)[0] * 255).round()[0, 0] for u in noises]

    whole = images[0, 0].float()
    first, last = ends(Augment(shift=1))
    assert torch.equal(first[:3, :3], whole[1:, 1:])
    assert torch.equal(last[1:, 1:], whole[:3, :3])
    first, last = ends(Augment(crop=3))
    assert torch.equal(first, whole[:3, :3])
    assert torch.equal(last, whole[1:, 1:])
    first, last = ends(Augment(crop=4, padding=1))
    assert torch.equal(first[1:, 1:], whole[:3, :3])
    assert torch.equal(last[:3, :3], whole[1:, 1:])
    first, last = ends(Augment(flip=True))
    assert torch.equal(first, whole.flip(-1))
    assert torch.equal(last, whole)
    first, last = ends(Augment(brightness=0.1))
    assert torch.equal(first, (whole - 25.5).clamp(min=0).round())
    torch.testing.assert_close(last, whole + 25.5, rtol=0, atol=0.51)
    first, last = ends(Augment(brightness=0.1, clamp=False))
    torch.testing.assert_close(first, whole - 25.5, rtol=0, atol=0.51)


@pytest.mark.usefixtures("fake_data")
def test_images_are_resized_once_in_every_split() -> None:
    opened = sources.open_sources(small_recipe("data.resize=14"), None, CPU, Share(8))
    images = [opened.train.split.images, opened.validation.some(2).inputs, opened.test.some(2).inputs]
    assert [tuple(x.shape[1:]) for x in images] == [(1, 14, 14)] * 3


def test_held_out_examples_are_the_same_ones_differently_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, root: Any, bright: int = 0) -> Any:
        whole = fake_load_data(name)
        return replace(whole, train=replace(whole.train, images=whole.train.images | bright))

    monkeypatch.setattr(sources, "load_data", load)
    plain, made = (sources.load_splits(small_recipe(*more).data, None, CPU) for more in ((), ("data.held.bright=1",)))
    assert torch.equal(made[0].train.images, plain[0].train.images)
    assert torch.equal(made[1].images, plain[1].images | 1)
    assert torch.equal(made[1].labels, plain[1].labels)


def test_evaluation_takes_the_centre_of_what_training_crops() -> None:
    data = fake_dataset()
    (batch,) = held_images(data.test, 24, data).batches(40)
    torch.testing.assert_close(batch.inputs, data.test.images[:, :, 2:26, 2:26].float() / 255)


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


def test_each_picture_is_read_once_and_few_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_pictures(tmp_path, 60, 14, 16)  # its own, as threads may still read ahead for the test before
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    read, files = user_images.read_picture, []

    def watched(source: Any, channels: int = 0) -> Any:
        picture = read(source, channels)
        if tmp_path in Path(source).parents:
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


def test_the_model_is_built_for_the_pictures(folder: Path) -> None:
    found = open_sources(recipe(folder, augment={"crop": 10}), None, CPU, None)
    assert found.train is None
    assert found.options == {"classes": 3, "image": (3, 10, 10)}
    assert isinstance(found.dataset.train.images, StoredImages)
