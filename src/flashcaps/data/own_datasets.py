"""Any torch.utils.data.Dataset of (image, label) as a data set to train on.

    dataset = from_torch(train=TensorDataset(images, labels), test=TensorDataset(more, of_more))
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .split import Dataset, Split, StoredImages
from .user_images import read_picture

GIVEN = "a Dataset of your own"


def from_torch(
    train: Any, test: Any, validation: Any = None, *, class_names: Sequence[str] = (), streaming: bool = False
) -> Dataset:
    """Data sets whose items are (image, label), with a length.

    An image is a tensor or array (C, H, W) of bytes or floats, whose values are kept, or a PIL picture. A label is a
    class from 0, or (K,) of 0 and 1 for several at once. Items are read once. streaming: several threads read images
    anew for every batch, as random transforms and large data need it.
    """
    given = {"train": train, "test": test, "validation": validation}
    splits = {name: _split(name, data, streaming) for name, data in given.items() if data is not None}
    whole = splits["train"]
    image, several = whole.images.shape[1:], whole.labels.ndim == 2
    for name, split in splits.items():
        if split.images.shape[1:] != image or split.labels.shape[1:] != whole.labels.shape[1:]:
            got = tuple(split.images.shape[1:]), tuple(split.labels.shape[1:])
            expected = tuple(image), tuple(whole.labels.shape[1:])
            raise ValueError(f"{name}: expected images and labels of shapes {expected} as in train, got {got}")
    classes = whole.labels.shape[1] if several else max(int(split.labels.max()) for split in splits.values()) + 1
    if class_names and len(class_names) < classes:
        raise ValueError(f"class_names: expected {classes}, one per class, got {len(class_names)}")
    c, h, w = image
    return Dataset(GIVEN, whole, splits["test"], max(classes, len(class_names)), (c, h, w), several,
                   tuple(class_names), splits.get("validation"))  # fmt: skip


def _split(name: str, data: Any, streaming: bool) -> Split:
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data)):
        raise TypeError(f"{name}: expected a torch.utils.data.Dataset with a length of at least 1, got "
                        f"{type(data).__name__}; read an iterable one into a list of (image, label)")  # fmt: skip
    first = _image(data[0][0])
    shape, dtype = first.shape, first.dtype

    def read(k: int) -> Tensor:
        image = _image(data[k][0])
        if image.shape != shape or image.dtype != dtype or image.ndim != 3:
            raise ValueError(f"{name}[{k}]: expected an image (C, H, W) like the first, {tuple(shape)} {dtype}, got "
                             f"{tuple(image.shape)} {image.dtype}; bring all to one size")  # fmt: skip
        return image

    images: Any = StoredImages(read, torch.arange(len(data)), shape, dtype=dtype)
    if not streaming:
        images = torch.stack([read(k) for k in range(len(data))])
    labels = torch.stack([torch.as_tensor(data[k][1]) for k in range(len(data))])
    classes = labels.ndim == 1 and not labels.is_floating_point() and int(labels.min()) >= 0
    if not classes and not (labels.ndim == 2 and bool(((labels == 0) | (labels == 1)).all())):
        raise ValueError(f"{name}: expected labels that are classes from 0, or rows of 0 and 1, got {labels.dtype} "
                         f"{tuple(labels.shape)} from {labels.min().item()} to {labels.max().item()}")  # fmt: skip
    return Split(images, labels.long() if classes else labels.float())


def _image(image: Any) -> Tensor:
    """(C, H, W), bytes or float32."""
    if not isinstance(image, Tensor):
        image = torch.from_numpy(image) if isinstance(image, np.ndarray) else read_picture(image)
    return image if image.dtype == torch.uint8 else image.float()
