"""Batches for training and evaluation, made on the device from data that are stored there.

A training stream plans a whole epoch at once (which examples, in which order, with which random numbers) as a pure
function of (seed, epoch), and makes a batch as a pure function of its row of the plan. So a run can resume anywhere,
any number of processes share what one would take, and a captured step is fed by copying one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..data import Dataset, Split, make_generator, to_float
from ..data import augment as change
from ..data.random import draws, uniform
from ..nn.losses import multi_hot
from .recipe import Augment

_TABLE = 1 << 16


class Batch(NamedTuple):
    """inputs (B, ...) float; targets (B,) or (B, K); mask (B, n) of the hidden states of text.

    For the decoder: chosen classes (B,) or (B, M), and the pictures it should draw of them.
    """

    inputs: Tensor
    targets: Tensor
    chosen: Tensor | None = None
    pictures: Tensor | None = None
    mask: Tensor | None = None


class Plan(NamedTuple):
    """One epoch of this process: index (steps, B) int64 into the data, noise (steps, B, columns) in [0, 1)."""

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which no plan needs
    noise: Tensor


class Share(NamedTuple):
    """The part of every step that one process of `world` takes: `batch` examples."""

    batch: int
    rank: int = 0
    world: int = 1


class Stream(Protocol):
    """What the training loop asks of its data."""

    share: Share
    steps: int  # in an epoch

    def plan(self, epoch: int) -> Plan: ...

    def batch(self, index: Tensor, noise: Tensor) -> Batch: ...


class Held(Protocol):
    """Examples to evaluate on, always the same."""

    rule: str  # how scores become an answer: "top1", "top2" or "threshold"
    classes: int

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[Batch]: ...

    def some(self, count: int) -> Batch:
        """A few examples of all classes."""
        ...


class Augmentation:
    """Random changes of a batch, driven by the `columns` numbers each image gets."""

    def __init__(self, spec: Augment, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.spec = spec
        self.flipped = 2 * bool(spec.shift) + 2 * bool(spec.crop)  # the column that decides on mirroring
        self.columns = self.flipped + spec.flip
        self.columns += 2 * bool(spec.brightness or spec.contrast) + 2 * bool(spec.cutout) + 2 * bool(spec.mixup)
        self.columns += 4 * bool(spec.cutmix)
        if spec.mixup:  # Beta draws need rejection sampling; a table of them needs one number each
            weight, _ = change.mixup_weights(_TABLE, spec.mixup, make_generator(seed))
            self.table = weight.to(device)

    def __call__(self, images: Tensor, targets: Tensor, noise: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """images (B, C, H, W) uint8, targets (B,), noise (B, columns) -> float images, targets (B,) or (B, K)."""
        s, at = self.spec, 0

        def take(n: int) -> Tensor:
            nonlocal at
            at += n
            return noise[:, at - n : at]

        if s.shift:
            images = change.shift(images, s.shift, offsets=(take(2) * (2 * s.shift + 1)).long() - s.shift)
        if s.crop:
            u = take(2)
            spare = [n + 2 * s.padding - s.crop for n in images.shape[2:]]
            offsets = torch.stack([(u[:, i] * (n + 1)).long() for i, n in enumerate(spare)], 1)
            images = change.random_crop(images, s.crop, s.padding, offsets=offsets)
        if s.flip:
            images = change.flip(images, mask=take(1)[:, 0] < 0.5)
        if s.brightness or s.contrast:
            low, high = s.contrast or (1.0, 1.0)
            images = change.brightness_contrast(images, s.brightness, (low, high), amounts=take(2))
        images = to_float(images)
        if s.cutout:
            images = change.cutout(images, s.cutout, places=take(2))
        if s.mixup:
            weight, partner = self.mixing(take(2))
            images = change.mix(images, weight, partner)
            targets = change.mix(multi_hot(targets, classes), weight, partner)
        if s.cutmix:
            images, weight, partner = change.cutmix(images, s.cutmix, amounts=take(4))
            targets = change.mix(multi_hot(targets, classes), weight, partner)
        return images, targets

    def mixing(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """noise (B, 2) -> mixup's (weight, partner), both (B,)."""
        return self.table[(noise[:, 0] * _TABLE).long()], noise[:, 1].argsort()


def check_enough(examples: int, share: Share) -> int:
    """Steps in an epoch: whole batches only, so that every step has the same shape."""
    steps = examples // (share.batch * share.world)
    if steps < 1:
        raise ValueError(f"train.batch: expected at most {examples // share.world} (the data have {examples} examples, "
                         f"for {share.world} processes), got {share.batch}")
    return steps


def shuffle(examples: int, columns: int, share: Share, epoch: int, seed: int, device: torch.device) -> Plan:
    """A new order of all examples, and `columns` numbers for each place in it, for (seed, epoch)."""
    b, rank, world = share
    steps = check_enough(examples, share)
    place = epoch * examples + torch.arange(examples, device=device)
    order = draws(seed, place, 1)[:, 0].argsort()
    mine = (x[: steps * world * b].view(steps, world, b)[:, rank] for x in (order, place))
    index, place = (x.contiguous() for x in mine)
    return Plan(index, uniform(seed + 1, place.view(-1), columns).view(steps, b, columns))


class ImageStream:
    """The images of a split, each once an epoch in a new order; a last partial batch is left out."""

    def __init__(self, split: Split, augment: Augment, share: Share, classes: int, seed: int) -> None:
        self.split, self.share, self.classes, self.seed = split, share, classes, seed
        self.steps = check_enough(len(split), share)
        self.augment = Augmentation(augment, split.images.device, seed)

    def plan(self, epoch: int) -> Plan:
        plan = shuffle(len(self.split), self.augment.columns, self.share, epoch, self.seed, self.split.labels.device)
        if self.augment.spec.alternate:
            u = uniform(self.seed + 2, plan.index.view(-1), 1).view(plan.index.shape)
            plan.noise[..., self.augment.flipped] = (u + 0.5 * (epoch % 2)) % 1
        return plan

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        labels = self.split.labels[index]
        images, targets = self.augment(self.split.images[index], labels, noise, self.classes)
        return Batch(images, targets, labels, images)


class PairStream:
    """Composed images, each a new one; an epoch has as many as there are digits."""

    def __init__(self, pairs: Any, share: Share, seed: int) -> None:
        self.pairs, self.share, self.seed = pairs, share, seed
        self.steps = check_enough(len(pairs), share)

    def plan(self, epoch: int) -> Plan:
        b, rank, world = self.share
        first, count = epoch * self.steps * world * b, self.steps * world * b
        index = first + torch.arange(count, device=self.pairs.device).view(self.steps, world, b)[:, rank]
        return Plan(index.contiguous(), index.new_zeros((self.steps, b, 0), dtype=torch.float32))

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        return pair_batch(self.pairs.at(index, self.seed))


def spread(total: int, wanted: int) -> Tensor:
    """`wanted` places evenly over `total`, for sets sorted by class."""
    wanted = min(wanted, total)
    return torch.arange(wanted) * total // wanted


def pair_batch(pair: Any) -> Batch:
    return Batch(pair.images, pair.targets, pair.labels, pair.sources)


class HeldImages:
    """A split as it is; the centre where training takes crops."""

    def __init__(self, split: Split, crop: int, classes: int, rule: str = "top1") -> None:
        self.split, self.crop, self.classes, self.rule = split, crop, classes, rule

    def __len__(self) -> int:
        return len(self.split)

    def batches(self, size: int) -> Iterator[Batch]:
        for images, labels in zip(self.split.images.split(size), self.split.labels.split(size), strict=True):
            yield self._batch(images, labels)

    def some(self, count: int) -> Batch:
        index = spread(len(self), count).to(self.split.labels.device)
        return self._batch(self.split.images[index], self.split.labels[index])

    def _batch(self, images: Tensor, labels: Tensor) -> Batch:
        images = to_float(change.center_crop(images, self.crop) if self.crop else images)
        return Batch(images, labels, labels, images)


def held_images(split: Split, crop: int, dataset: Dataset) -> HeldImages:
    """Images to evaluate on, of one class each or of several: then the answer is every class above the threshold."""
    return HeldImages(split, crop, dataset.classes, "threshold" if dataset.multilabel else "top1")


class HeldPairs:
    """A fixed set of composed images. rule: "top2" where there are always two, "threshold" where one or two."""

    def __init__(self, fixed: Any, rule: str, classes: int) -> None:
        self.fixed, self.rule, self.classes = fixed, rule, classes

    def __len__(self) -> int:
        return len(self.fixed)

    def batches(self, size: int) -> Iterator[Batch]:
        for pair in self.fixed.batches(size):
            yield pair_batch(pair)

    def some(self, count: int) -> Batch:
        return pair_batch(self.fixed.fixed_batch(0, count))
