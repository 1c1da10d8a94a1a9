"""Batches for training and evaluation, made on the device from data that are stored there.

A training stream plans a whole epoch (which examples, in which order, with which random numbers) as a pure function of
(seed, epoch), and makes a batch as a pure function of its row of the plan. So a run can resume at any step, processes
share the batch that one process would take, and the input of a captured step is one row.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..data import Batch as Batch
from ..data import Dataset, MultiMNIST, Split, make_generator, to_float
from ..data import augment as change
from ..data.random import draws, uniform
from ..data.split import StoredImages
from ..nn.losses import multi_hot
from .recipe import Augment

_TABLE = 1 << 16
AHEAD = 3  # batches of pictures on disk that are read before they are asked for


class Plan(NamedTuple):
    """One epoch of this process: index (steps, B) int64 into the data, noise (steps, B, columns) in [0, 1)."""

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which no plan needs
    noise: Tensor


class Share(NamedTuple):
    """The part of every step that one process of `world` takes: `batch` examples."""

    batch: int
    rank: int = 0
    world: int = 1


class Stream:
    """What the loop trains on: `steps` whole batches an epoch, so that every step has the same shape."""

    def __init__(self, examples: int, share: Share, seed: int) -> None:
        self.examples, self.share, self.seed = examples, share, seed
        self.steps = examples // (share.batch * share.world)
        if self.steps < 1:
            raise ValueError(f"train.batch: expected at most {examples // share.world} (the data have {examples} "
                             f"examples, for {share.world} processes), got {share.batch}")

    def plan(self, epoch: int) -> Plan:
        raise NotImplementedError

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        """The examples at index (n,), changed by their random numbers (n, columns)."""
        raise NotImplementedError


class Held:
    """Examples to evaluate on, always the same. take(index) gives the batch of those at index (n,).

    rule: how scores become an answer, "top1", "top2" or "threshold". split: the images of one split,
    if that is where the examples come from.
    """

    def __init__(self, take: Callable[[Tensor], Batch], count: int, classes: int, rule: str,
                 device: torch.device | str = "cpu", split: Split | None = None) -> None:  # fmt: skip
        self.take, self.count, self.classes, self.rule, self.device = take, count, classes, rule, device
        self.split = split

    def __len__(self) -> int:
        return self.count

    def batches(self, size: int) -> Iterator[Batch]:
        for index in torch.arange(self.count, device=self.device).split(size):
            yield self.take(index)

    def some(self, count: int) -> Batch:
        """A few examples of all classes."""
        return self.take(spread(self.count, count).to(self.device))


class Augmentation:
    """Random changes of a batch, driven by the `columns` numbers each image gets."""

    def __init__(self, spec: Augment, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.spec = spec
        self.flipped = 2 * bool(spec.shift) + 2 * bool(spec.crop)  # the column that decides on mirroring
        self.columns = self.flipped + spec.flip
        self.columns += 2 * bool(spec.brightness or spec.contrast) + 2 * bool(spec.cutout) + 2 * bool(spec.mixup)
        if spec.mixup:  # Beta draws need rejection sampling; a table of them needs one number each
            self.table = change.mixup_weights(_TABLE, spec.mixup, make_generator(seed)).to(device)

    def __call__(self, images: Tensor, targets: Tensor, noise: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """images (B, C, H, W) uint8, targets (B,), noise (B, columns) -> float images, targets (B,) or (B, K)."""
        s, at = self.spec, 0

        def take(n: int) -> Tensor:
            nonlocal at
            at += n
            return noise[:, at - n : at]

        if s.shift:
            images = change.shift(images, (take(2) * (2 * s.shift + 1)).long() - s.shift)
        if s.crop:
            u = take(2)
            spare = [n + 2 * s.padding - s.crop for n in images.shape[2:]]
            offsets = torch.stack([(u[:, i] * (n + 1)).long() for i, n in enumerate(spare)], 1)
            images = change.random_crop(images, s.crop, s.padding, offsets)
        if s.flip:
            images = change.flip(images, take(1)[:, 0] < 0.5)
        if s.brightness or s.contrast:
            low, high = s.contrast or (1.0, 1.0)
            images = change.brightness_contrast(images, s.brightness, (low, high), take(2), s.clamp)
        images = to_float(images)
        if s.cutout:
            images = change.cutout(images, s.cutout, take(2))
        if s.mixup:
            weight, partner = self.mixing(take(2))
            images = change.mix(images, weight, partner)
            targets = change.mix(multi_hot(targets, classes), weight, partner)
        return images, targets

    def mixing(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """noise (B, 2) -> mixup's (weight, partner), both (B,)."""
        return self.table[(noise[:, 0] * _TABLE).long()], noise[:, 1].argsort()


class ShuffledStream(Stream):
    """Examples with these labels, each once an epoch in a new order; a last partial batch is left out."""

    def __init__(self, labels: Tensor, augment: Augment, share: Share, classes: int, seed: int) -> None:
        super().__init__(len(labels), share, seed)
        self.labels, self.classes = labels, classes
        self.augment = Augmentation(augment, labels.device, seed)

    def plan(self, epoch: int) -> Plan:
        """The order of all examples, and the random numbers of each place in it, for (seed, epoch)."""
        (b, rank, world), columns = self.share, self.augment.columns
        place = epoch * self.examples + torch.arange(self.examples, device=self.labels.device)
        order = draws(self.seed, place, 1)[:, 0].argsort()
        mine = (x[: self.steps * world * b].view(self.steps, world, b)[:, rank] for x in (order, place))
        index, place = (x.contiguous() for x in mine)
        noise = uniform(self.seed + 1, place.view(-1), columns).view(self.steps, b, columns)
        if self.augment.spec.alternate:
            u = uniform(self.seed + 2, index.view(-1), 1).view(index.shape)
            noise[..., self.augment.flipped] = (u + 0.5 * (epoch % 2)) % 1
        return Plan(index, noise)


class ImageStream(ShuffledStream):
    """The images of a split."""

    def __init__(self, split: Split, augment: Augment, share: Share, classes: int, seed: int) -> None:
        super().__init__(split.labels, augment, share, classes, seed)
        self.split = split

    def images(self, index: Tensor) -> Tensor:
        return self.split.images[index]

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        labels = self.labels[index]
        images, targets = self.augment(self.images(index), labels, noise, self.classes)
        return Batch(images, targets, labels, images)


class StreamedImages(ImageStream):
    """The batches of ImageStream, from a split whose images are StoredImages, which are read a few batches ahead.

    It holds 8 bytes an example for the order of an epoch, as much for the inverse of the order, the random numbers of
    the plan, and the pictures of AHEAD + 1 batches. Rows may be asked for in any order, as a resumed run does; those
    that follow in the plan are read ahead.
    """

    def __init__(self, split: Split, augment: Augment, share: Share, classes: int, seed: int) -> None:
        super().__init__(split, augment, share, classes, seed)
        self.stored = cast(StoredImages, split.images)
        self.order = torch.zeros(0, dtype=torch.int64)
        self.place = torch.zeros(len(split), dtype=torch.int64)  # of each example in the order
        self.reading: dict[int, Future[Tensor]] = {}

    def plan(self, epoch: int) -> Plan:
        """The index stays on the CPU, where files are read."""
        plan = super().plan(epoch)
        index = plan.index.cpu()
        self.order = index.flatten()
        self.place[self.order] = torch.arange(len(self.order))
        return Plan(index, plan.noise)

    def images(self, index: Tensor) -> Tensor:
        """Waits for the examples at `index`, and starts to read those after them in the plan."""
        first = int(self.place[index[0]])
        ahead = self.order[first : first + len(index) + AHEAD * self.share.batch]
        asked, wanted = (self.stored.index[rows].tolist() for rows in (index, torch.cat([index, ahead])))
        self.reading = {k: self.reading.get(k) or self.stored.begin(k) for k in dict.fromkeys(wanted)}
        return self.stored.end([self.reading[k] for k in asked])


class PairStream(Stream):
    """Composed images, each a new one; an epoch has as many as there are digits."""

    def __init__(self, pairs: MultiMNIST, share: Share, seed: int) -> None:
        super().__init__(len(pairs), share, seed)
        self.pairs = pairs

    def plan(self, epoch: int) -> Plan:
        b, rank, world = self.share
        first, count = epoch * self.steps * world * b, self.steps * world * b
        index = first + torch.arange(count, device=self.pairs.device).view(self.steps, world, b)[:, rank]
        return Plan(index.contiguous(), index.new_zeros((self.steps, b, 0), dtype=torch.float32))

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        return self.pairs.at(index, self.seed)


def spread(total: int, wanted: int) -> Tensor:
    """`wanted` places evenly over `total`, for sets sorted by class."""
    wanted = min(wanted, total)
    return torch.arange(wanted) * total // wanted


def held_images(split: Split, crop: int, dataset: Dataset) -> Held:
    """The images of a split, or their centres where training takes crops. Where images have several classes, an answer
    must have all of them."""

    def take(index: Tensor) -> Batch:
        images, labels = split.images[index], split.labels[index]
        images = to_float(change.center_crop(images, crop) if crop else images)
        return Batch(images, labels, labels, images)

    rule = "threshold" if dataset.multilabel else "top1"
    return Held(take, len(split), dataset.classes, rule, split.labels.device, split)
