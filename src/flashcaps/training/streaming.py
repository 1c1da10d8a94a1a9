"""Training and evaluation on shards: batches are read, decoded and sent to the device while the one before is used.

    [data]
    name = "shards"
    path = "pets"               # a folder that `flashcaps data shard` made
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data import Dataset, Split, to_float
from ..data.augment import center_crop
from ..data.random import uniform
from ..data.shards import PARTS, Shards, decode, has_part, open_shards
from .batches import Augmentation, Batch, Plan, Share, check_enough, spread
from .recipe import Augment, Recipe

if TYPE_CHECKING:
    from .loader import Sources

AHEAD = 3  # batches read before they are asked for
THREADS = 4  # Pillow decodes outside the interpreter's lock


class Reader:
    """Samples as tensors: uint8 (B, C, H, W) and labels (B,), decoded by a few threads."""

    def __init__(self, shards: Shards, image: tuple[int, int, int], device: torch.device) -> None:
        self.shards, self.image, self.device = shards, image, device
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="shards")

    def __len__(self) -> int:
        return len(self.shards)

    def begin(self, index: Tensor) -> list[Future[tuple[Tensor, int]]]:
        return [self.threads.submit(self._one, place) for place in index.tolist()]

    def _one(self, place: int) -> tuple[Tensor, int]:
        sample = self.shards[place]
        return decode(sample.picture, self.image), sample.label

    def end(self, begun: list[Future[tuple[Tensor, int]]]) -> tuple[Tensor, Tensor]:
        done = [future.result() for future in begun]
        images, labels = torch.stack([x for x, _ in done]), torch.tensor([label for _, label in done])
        if self.device.type == "cuda":
            images, labels = images.pin_memory(), labels.pin_memory()
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def __call__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.end(self.begin(index))


class ShardStream:
    """The training part, each sample once an epoch (but for a last partial batch), in the shards' own order.

    A plan is 8 bytes a sample and its random numbers; pictures are in memory for `AHEAD` batches only. `batch` may be
    asked for any row of a plan, so a run goes on anywhere; rows asked for one after the other are read ahead.
    """

    def __init__(self, reader: Reader, augment: Augment, share: Share, seed: int) -> None:
        self.reader, self.share, self.seed = reader, share, seed
        self.classes = len(reader.shards.class_names)
        self.steps = check_enough(len(reader), share)
        if augment.alternate:
            raise ValueError("augment.alternate: expected data that are at hand whole, got shards; leave it out")
        self.augment = Augmentation(augment, reader.device, seed)
        self._rows: dict[tuple[int, ...], int] = {}  # first places of a row -> its number
        self._index = torch.zeros(0, share.batch, dtype=torch.int64)
        self._ahead: deque[tuple[int, list[Future[tuple[Tensor, int]]]]] = deque()

    def plan(self, epoch: int) -> Plan:
        b, rank, world = self.share
        order = self.reader.shards.order(self.seed, epoch)
        place = epoch * len(order) + torch.arange(len(order))
        index, place = (x[: self.steps * world * b].view(self.steps, world, b)[:, rank] for x in (order, place))
        self._index, self._rows = index, {_key(row): k for k, row in enumerate(index)}
        self._ahead.clear()
        noise = uniform(self.seed + 1, place.reshape(-1), self.augment.columns)
        return Plan(index.contiguous(), noise.view(self.steps, b, self.augment.columns).to(self.reader.device))

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        images, labels = self._read(index)
        images, targets = self.augment(images, labels, noise, self.classes)
        return Batch(images, targets, labels, images)

    def _read(self, index: Tensor) -> tuple[Tensor, Tensor]:
        row = self._rows.get(_key(index), -1)
        if row < 0 or len(index) != self.share.batch:  # a part of a row, as accumulation takes
            return self.reader(index)
        while self._ahead and self._ahead[0][0] != row:
            self._ahead.popleft()
        begun = self._ahead.popleft()[1] if self._ahead else self.reader.begin(index)
        last = self._ahead[-1][0] if self._ahead else row
        for k in range(last + 1, min(row + AHEAD, self.steps - 1) + 1):
            self._ahead.append((k, self.reader.begin(self._index[k])))
        return self.reader.end(begun)


def _key(row: Tensor) -> tuple[int, ...]:
    return tuple(row[:4].tolist())


@dataclass
class HeldShards:
    """A part to evaluate on, always the same; the centre where training takes crops. most: no more than these."""

    reader: Reader
    crop: int
    classes: int
    most: int = 1 << 62
    rule: str = "top1"

    def __len__(self) -> int:
        return min(len(self.reader), self.most)

    def batches(self, size: int) -> Iterator[Batch]:
        for index in torch.arange(len(self)).split(size):
            yield self._batch(index)

    def some(self, count: int) -> Batch:
        return self._batch(spread(len(self), count))

    def _batch(self, index: Tensor) -> Batch:
        images, labels = self.reader(index)
        images = to_float(center_crop(images, self.crop) if self.crop else images)
        return Batch(images, labels, labels, images)


def shard_sources(recipe: Recipe, device: torch.device, share: Share | None, most: int = 1 << 62) -> Sources:
    """What the loop trains and evaluates on. most: examples of a held part that are looked at, for a short run."""
    from .loader import Sources

    if device.type == "cuda" and recipe.train.capture and (share is None or share.world == 1):
        raise ValueError("train.capture: a step that reads shards cannot be captured; run it with train.capture=false")
    options: dict[str, Any] = dict(recipe.data.options)
    path, window = options.get("path"), int(options.get("window", 8))
    if not path:
        raise ValueError("data.path: expected a folder of shards, got none; data.path=DIR")
    parts = {part: open_shards(path, part, window) for part in PARTS if part != "validation" or has_part(path, part)}
    train = parts["train"]
    image = tuple(int(n) for n in options.get("image", train.image))
    if len(image) != 3 or min(image) < 1:
        raise ValueError(f"data.image: expected (channels, height, width), as {path} does not say, got {list(image)}")
    shape, classes, crop = (image[0], image[1], image[2]), len(train.class_names), recipe.augment.crop
    held = {part: HeldShards(Reader(parts[part], shape, device), crop, classes, most) for part in parts}
    seen = (shape[0], crop, crop) if crop else shape
    nothing = Split(torch.zeros(0, *seen, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    dataset = Dataset("shards", nothing, nothing, classes, seen, class_names=train.class_names)
    stream = None
    if share is not None:
        stream = ShardStream(Reader(train, shape, device), recipe.augment, share, recipe.train.seed)
    return Sources(dataset, stream, held.get("validation"), held["test"], {"classes": classes, "image": seen})
