"""Training on pictures that stay on disk: they are read and decoded a few batches ahead of the step that needs them.

    [data]
    name = "images"             # or "table", "hub"
    path = "pets"
    streaming = true
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

import torch
from torch import Tensor

from ..data import Split
from ..data.split import StoredImages
from .batches import Batch, ImageStream, Plan, Share
from .recipe import Augment

AHEAD = 3  # batches that are read before they are asked for


class StreamedImages(ImageStream):
    """The batches of ImageStream, from a split whose images are StoredImages.

    In memory are 8 bytes an example for the order of an epoch, as much for its inverse, the random numbers of the plan
    and the pictures of AHEAD + 1 batches. Any rows may be asked for, so that a run can resume anywhere; those that
    follow in the plan are read ahead.
    """

    def __init__(self, split: Split, augment: Augment, share: Share, classes: int, seed: int) -> None:
        super().__init__(split, augment, share, classes, seed)
        self.images = cast(StoredImages, split.images)
        self.order = torch.zeros(0, dtype=torch.int64)
        self.place = torch.zeros(len(split), dtype=torch.int64)  # of each example in the order
        self.reading: dict[int, Future[Tensor]] = {}

    def plan(self, epoch: int) -> Plan:
        """The index stays on the CPU, where files are read."""
        index, noise = super().plan(epoch)
        index = index.cpu()
        self.order = index.flatten()
        self.place[self.order] = torch.arange(len(self.order))
        return Plan(index, noise)

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        labels = self.split.labels[index]
        images, targets = self.augment(self.images.end(self._begin(index)), labels, noise, self.classes)
        return Batch(images, targets, labels, images)

    def _begin(self, index: Tensor) -> list[Future[Tensor]]:
        """Starts to read the examples at `index` and those after them in the plan, unless they are being read."""
        first = int(self.place[index[0]])
        ahead = self.order[first : first + len(index) + AHEAD * self.share.batch]
        asked, wanted = (self.images.index[rows].tolist() for rows in (index, torch.cat([index, ahead])))
        self.reading = {k: self.reading.get(k) or self.images.begin(k) for k in dict.fromkeys(wanted)}
        return [self.reading[k] for k in asked]
