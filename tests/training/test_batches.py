"""Batches and where they come from: shared among processes, augmented by numbers drawn ahead, held out as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps.data import MultiMNIST
from flashcaps.training import loader as sources
from flashcaps.training.batches import Augmentation, HeldImages, ImageStream, PairStream, Share
from flashcaps.training.recipe import Augment

from ..fake_data import fake_load_data, fake_split, small_recipe

CPU = torch.device("cpu")


def test_an_epoch_shows_each_example_once_and_processes_share_it() -> None:
    split = fake_split(40, 10, (1, 28, 28))
    whole = ImageStream(split, Augment(shift=1), Share(8), 10, 5)
    parts = [ImageStream(split, Augment(shift=1), Share(4, rank, 2), 10, 5) for rank in (0, 1)]
    for epoch in (0, 1):
        plan = whole.plan(epoch)
        assert sorted(plan.index.flatten().tolist()) == list(range(40))
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
    assert batch.pictures is not None
    assert batch.pictures.shape == (8, 2, 1, 36, 36)
    assert (batch.targets.sum(1) == 2).all()


def test_augmentation_uses_each_number_for_one_thing() -> None:
    spec = Augment(shift=1, crop=24, padding=2, flip=True, brightness=0.2, contrast=(0.5, 1.5), cutout=5, mixup=0.2,
                   cutmix=1.0)  # fmt: skip
    augment = Augmentation(spec)
    assert augment.columns == 15
    images, labels = fake_split(6, 10, (1, 28, 28)).images, torch.arange(6)
    noise = torch.rand(6, 15)
    out, targets = augment(images, labels, noise, 10)
    assert out.shape == (6, 1, 24, 24)
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    for column in range(15):
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


def test_images_are_resized_once_in_every_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "load_data", fake_load_data)
    opened = sources.open_sources(small_recipe("data.resize=14"), None, CPU, Share(8))
    held = [opened.train.split, opened.validation.split, opened.test.split]
    assert [tuple(x.images.shape[1:]) for x in held] == [(1, 14, 14)] * 3


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
    split = fake_split(10, 10, (1, 28, 28))
    (batch,) = HeldImages(split, 24, 10).batches(10)
    torch.testing.assert_close(batch.inputs, split.images[:, :, 2:26, 2:26].float() / 255)
