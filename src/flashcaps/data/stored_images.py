"""Pictures that stay on disk: indexed like a tensor of images, and read when they are indexed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor


@cache
def _threads() -> ThreadPoolExecutor:
    """Pillow decodes outside the interpreter's lock, so threads decode at once."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="pictures")


class StoredImages:
    """Stands in for the images (N, C, H, W) uint8 of a Split: `images[index]` reads those pictures and no others.

    read(k) gives picture k as uint8 (C, H, W); index (N,) int64: which pictures these are, in order. A batch is put on
    `device`; nothing is kept.
    """

    dtype, layout = torch.uint8, torch.strided

    def __init__(self, read: Callable[[int], Tensor], index: Tensor, image: Sequence[int],
                 device: torch.device | str = "cpu") -> None:
        self.read, self.index, self.image, self.device = read, index, tuple(image), torch.device(device)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.index), *self.image))

    def __len__(self) -> int:
        return len(self.index)

    def dim(self) -> int:
        return 4

    def to(self, device: torch.device | str) -> StoredImages:
        return StoredImages(self.read, self.index, self.image, device)

    def select(self, index: Tensor | slice) -> StoredImages:
        """Some of these pictures, not read yet."""
        index = index if isinstance(index, slice) else index.cpu()
        return StoredImages(self.read, self.index[index], self.image, self.device)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        return self.end([self.begin(k) for k in self.select(index).index.tolist()])

    def split(self, size: int) -> Iterator[Tensor]:
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def begin(self, picture: int) -> Future[Tensor]:
        """Starts to read a picture, by its number in `index`."""
        return _threads().submit(self.read, picture)

    def end(self, begun: Sequence[Future[Tensor]]) -> Tensor:
        """Waits for pictures; (B, C, H, W) on the device."""
        images = torch.stack([future.result() for future in begun])
        return images.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else images
