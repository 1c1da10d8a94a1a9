"""What every data set consists of: splits of uint8 images, which become floats batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..routing.checks import check_sizes

CPU = torch.device("cpu")


def check_integers(name: str, x: Tensor) -> None:
    """Raises unless x is (N,) int64."""
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor (N,) int64, got {type(x).__name__}")
    if x.ndim != 1 or x.dtype != torch.int64:
        raise ValueError(f"{name}: expected (N,) int64, got {tuple(x.shape)} {x.dtype}")


class Batch(NamedTuple):
    """inputs (B, ...) float; targets: class indices (B,) or multi-hot (B, K); mask (B, n) of the hidden states of text.

    For the decoder: chosen classes (B,) or (B, M), -1 for none, and the pictures it should draw of them. Those of a
    composed image are its two parts, (B, 2, C, H, W).
    """

    inputs: Tensor
    targets: Tensor
    chosen: Tensor | None = None
    pictures: Tensor | None = None
    mask: Tensor | None = None


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads decode pictures in parallel, as Pillow releases the interpreter's lock."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="pictures")


@dataclass(frozen=True)
class StoredImages:
    """Stands in for the images (N, C, H, W) of a Split: `images[index]` reads those pictures and keeps none of them.

    read(k) gives picture k, (C, H, W); index (N,) int64: the pictures, in order; image: (C, H, W); device: of batches.
    """

    read: Callable[[int], Tensor]
    index: Tensor
    image: Sequence[int]
    device: torch.device = CPU
    dtype: torch.dtype = torch.uint8
    layout: ClassVar[torch.layout] = torch.strided

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.index), *self.image))

    def __len__(self) -> int:
        return len(self.index)

    def to(self, device: torch.device | str) -> StoredImages:
        return replace(self, device=torch.device(device))

    def select(self, index: Tensor | slice) -> StoredImages:
        """Some of these pictures, not read yet."""
        return replace(self, index=self.index[index if isinstance(index, slice) else index.cpu()])

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        return self.end([self.begin(k) for k in self.select(index).index.tolist()])

    def begin(self, picture: int) -> Future[Tensor]:
        """Starts to read a picture, by its number in `index`."""
        return _threads().submit(self.read, picture)

    def end(self, begun: Sequence[Future[Tensor]]) -> Tensor:
        """Waits for pictures; (B, C, H, W) on the device."""
        images = torch.stack([future.result() for future in begun])
        return images.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else images


@dataclass(frozen=True)
class Split:
    """N examples: images (N, C, H, W) uint8, labels (N,) int64, info: one (N,) tensor per further label.

    Images that are not bytes, such as the columns of a table, are float32, and their values are kept. A text data set
    has its N phrases in `text`, and images of shape (N, 0, 0, 0). Images that are read when they are needed are
    StoredImages, which are indexed like a tensor.
    """

    images: Tensor
    labels: Tensor
    info: dict[str, Tensor] = field(default_factory=dict)
    text: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, x in (("images", self.images), ("labels", self.labels)):
            if not isinstance(x, Tensor | StoredImages) or x.layout != torch.strided:
                raise TypeError(f"{name}: expected a dense tensor, got {type(x).__name__}")
        if self.images.dtype not in (torch.uint8, torch.float32) or len(self.images.shape) != 4:
            raise ValueError(f"images: expected uint8 or float32 (N, C, H, W), got {self.images.dtype} "
                             f"{tuple(self.images.shape)}; keep pixels as 0..255 and let to_float make the batches")
        if self.labels.device != self.images.device:
            raise ValueError(f"labels: on {self.labels.device}, but the images are on {self.images.device}; move one")
        for name, column in {"labels": self.labels, **self.info}.items():
            if column.shape[:1] != self.images.shape[:1]:
                raise ValueError(f"{name}: expected {len(self)} rows, one per image, got {tuple(column.shape)}")
        if self.text is not None and len(self.text) != len(self):
            raise ValueError(f"text: expected {len(self)} phrases, one per label, got {len(self.text)}")

    def __len__(self) -> int:
        return self.images.shape[0]

    def to(self, device: torch.device | str) -> Split:
        info = {name: column.to(device) for name, column in self.info.items()}
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), info=info)

    def select(self, indices: Tensor | slice) -> Split:
        """The examples at `indices`, in that order."""
        text = self.text
        if text is not None:
            rows = range(len(text))[indices] if isinstance(indices, slice) else indices.tolist()
            text = tuple(text[i] for i in rows)
        info = {name: column[indices] for name, column in self.info.items()}
        images: Any = self.images.select(indices) if isinstance(self.images, StoredImages) else self.images[indices]
        return replace(self, images=images, labels=self.labels[indices], info=info, text=text)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split, and what a model must know about them.

    shape: of one image as the model sees it. validation: only where the authors publish one, or where viewpoints are
    held out, the familiar ones. compose: for images that are composed of the splits' digits; compose(split) has a
    method at(index, seed) -> Batch.
    """

    name: str
    train: Split
    test: Split
    classes: int
    shape: tuple[int, int, int]
    multilabel: bool = False
    class_names: tuple[str, ...] = ()
    validation: Split | None = None
    compose: Callable[[Split], Any] | None = None


def to_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 0..255 -> floats in [0, 1]. Images of floats keep their values."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images: expected a tensor, got {type(images).__name__}")
    if images.dtype != torch.uint8:
        if not images.is_floating_point():
            raise ValueError(f"images: expected uint8 or floats, got {images.dtype}; convert them with .float()")
        return images.to(dtype)
    return images.to(dtype).mul_(1 / 255)  # a CPU and a GPU round this product alike, but not a quotient


def holdout(split: Split, count: int, seed: int = 0) -> tuple[Split, Split]:
    """(train, validation): holds out `count` examples, every class, or set of classes, in proportion."""
    check_sizes(0, count=count)
    if not 0 < count < len(split):
        raise ValueError(f"holdout: expected 1 to {len(split) - 1} of {len(split)} examples held out, got {count}")
    labels = split.labels.cpu()
    if labels.ndim == 2:
        labels = labels.unique(dim=0, return_inverse=True)[1]
    check_integers("labels", labels)
    if labels.min() < 0:
        raise ValueError(f"labels: expected classes from 0, got {labels.min().item()}")
    share = torch.bincount(labels).double() * count / len(split)
    quota = share.floor().long()
    largest_rest = (share - quota).argsort(descending=True, stable=True)
    quota[largest_rest[: count - int(quota.sum())]] += 1

    shuffled = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    held = torch.zeros(len(split), dtype=torch.bool)
    for label, part in enumerate(quota.tolist()):
        held[shuffled[labels[shuffled] == label][:part]] = True
    device = split.labels.device
    return split.select((~held).nonzero()[:, 0].to(device)), split.select(held.nonzero()[:, 0].to(device))


def describe(dataset: Dataset) -> str:
    """A few lines to print: sizes, shape, classes and how many examples each has."""
    c, h, w = dataset.shape
    what = "phrases" if dataset.train.text is not None else f"{c}x{h}x{w} images"
    if dataset.compose is not None:
        what += " composed on the fly from these digits"
    lines = [f"{dataset.name}: {what}, {dataset.classes} classes" + (", several at once" if dataset.multilabel else "")]
    splits = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    for name, split in splits.items():
        if split is not None:
            labels = split.labels.cpu()
            counts = labels.sum(0) if labels.ndim == 2 else torch.bincount(labels, minlength=dataset.classes)
            extra = f"; also {', '.join(split.info)}" if split.info else ""
            each = f"{int(counts.min()):,} to {int(counts.max()):,} a class"
            lines.append(f"  {name:<10} {len(split):>7,}, {each}{extra}")
    if dataset.class_names:
        shown = ", ".join(dataset.class_names[:10]) + (", ..." if len(dataset.class_names) > 10 else "")
        lines.append(f"  classes    {shown}")
    return "\n".join(lines)
