"""Your own data: pictures in a folder per class, in a table or a data set of the Hugging Face hub; texts in a table.

    dataset = load_data("images", path="pets")              # pets/cat/*.png, pets/dog/*.jpg
    dataset = load_data("table", path="scenes.csv")         # file,label  or  file,sea,sky,people with 0 and 1
    dataset = load_data("hub", path="someone/pictures")     # columns image and label
    dataset = load_data("text", path="reviews.csv")         # text,label
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .augment import resize
from .files import Root
from .listing import Listing, assign, list_folder, list_hub, list_table, list_text
from .split import Dataset, Split
from .stored_images import StoredImages

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_SIDE = 128  # of images without a given size
SAMPLE = 200  # pictures that a size is chosen from
LISTS: dict[str, Callable[..., Listing]] = {"images": list_folder, "table": list_table, "hub": list_hub}


class Survey(NamedTuple):
    """What a model must know: channels, height, width, and how many pictures it can train on."""

    image: tuple[int, int, int]
    train: int
    counts: dict[str, int]  # pictures of each class


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("pictures are read by Pillow: pip install 'flashcaps[plots]'") from None
    return Image


def read_picture(source: Any, channels: int = 0) -> Tensor:
    """A file, bytes, array or opened picture as uint8 (C, H, W). channels: 1 grey, 3 colour, 4 with alpha; 0: its own.

    Arrays (.npy) are (H, W), (H, W, C) or (C, H, W), of bytes or of numbers in [0, 1], and keep their channels.
    """
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".npy":
        try:
            loaded = np.load(source)
        except (EOFError, OSError) as error:
            raise ValueError(f"{source}: not a whole array ({error}); remove or replace it") from None
        except ValueError:  # which advises to unpickle it
            raise ValueError(f"{source}: not an array of numbers as np.save writes it; remove or replace it") from None
        return _array(loaded, channels, str(source))
    if isinstance(source, np.ndarray):
        return _array(source, channels, "array")
    image = _open(source)
    wanted = channels or (3 if image.mode not in ("1", "L", "F") and not image.mode.startswith("I") else 1)
    if wanted not in MODES:
        raise ValueError(f"{source}: expected {wanted} channels, got a picture; give a .npy array ({wanted}, H, W)")
    pixels = np.asarray(_eight_bits(image, source, wanted).convert(MODES[wanted]))
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], wanted).permute(2, 0, 1).contiguous()


def _eight_bits(image: Any, source: Any, channels: int) -> Any:
    """A picture that convert() keeps the look of: 16 bits and fractions become bytes, transparency becomes white."""
    if image.mode == "F" or image.mode.startswith("I"):
        x = np.asarray(image)
        most = 65535 if image.mode != "F" else 1 if x.max() <= 1 else 255
        if not (x.min() >= 0 and x.max() <= most):
            raise ValueError(f"{_where(source)}: expected grey values from 0 to {most}, got {x.min():g} to "
                             f"{x.max():g}; scale them")  # fmt: skip
        return _pillow().fromarray((x * (255 / most)).round().astype(np.uint8))
    if channels != 4 and (image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info):
        image = image.convert("RGBA")
        return _pillow().alpha_composite(_pillow().new("RGBA", image.size, "white"), image)
    return image


def _where(source: Any) -> str:
    if isinstance(source, bytes):
        return "stdin"
    return str(source) if isinstance(source, str | Path) else getattr(source, "name", "picture")


def _open(source: Any) -> Any:
    image = _pillow()
    if hasattr(source, "convert"):
        return source
    try:
        opened = image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        opened.load()
        opened = importlib.import_module("PIL.ImageOps").exif_transpose(opened)  # as a camera was held
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise ValueError(f"{_where(source)}: not a whole picture ({error}); remove or replace it") from None
    return opened


def _array(x: np.ndarray, channels: int, where: str) -> Tensor:
    if x.ndim == 2:
        x = x[None]
    if x.ndim != 3 or not x.size:
        raise ValueError(f"{where}: expected (H, W), (H, W, C) or (C, H, W), got {x.shape}")
    if x.shape[0] > 4 >= x.shape[2] or (channels and x.shape[2] == channels != x.shape[0]):
        x = x.transpose(2, 0, 1)
    if channels and x.shape[0] != channels:
        raise ValueError(f"{where}: expected {channels} channels, got {x.shape[0]} in {x.shape}")
    if x.dtype.kind not in "fiub":
        raise ValueError(f"{where}: expected bytes, or numbers from 0 to 1, got {x.dtype}")
    most = 255 if x.dtype.kind in "iu" else 1
    if not (x.min() >= 0 and x.max() <= most):
        raise ValueError(f"{where}: expected numbers from 0 to {most}, got {x.min():g} to {x.max():g}; scale them")
    if most == 1:
        x = (x * 255.0).round()
    return torch.from_numpy(np.ascontiguousarray(x.astype(np.uint8)))


def survey(listing: Listing, size: Sequence[int] = (), channels: int = 0) -> Survey:
    """The shape pictures are brought to: `size`, or the median of a sample, its longer side at most 128 pixels."""
    n = len(listing.files)
    sample = [listing.files[k * n // min(n, SAMPLE)] for k in range(min(n, SAMPLE))]
    shapes = [tuple(read_picture(f).shape) for f in sample]
    if not channels:
        channels = max(shape[0] for shape in shapes)
    if not size:
        height, width = (int(np.median([shape[k] for shape in shapes])) for k in (1, 2))
        scale = min(1.0, MAX_SIDE / max(height, width))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return Survey((channels, int(size[0]), int(size[1])), assign(listing, 0).count("train"), count_classes(listing))


def count_classes(listing: Listing) -> dict[str, int]:
    """Examples of each class."""
    labels = listing.labels if listing.multilabel else torch.eye(len(listing.class_names))[listing.labels]
    return dict(zip(listing.class_names, labels.sum(0).int().tolist(), strict=True))


def read_listing(
    listing: Listing, name: str, size: Sequence[int] = (), channels: int = 0, seed: int = 0, streaming: bool = False
) -> Dataset:
    """A Dataset of all pictures, brought to one shape; multi-label targets are (N, K).

    The pictures are read into memory, or with streaming=True whenever a batch of them is asked for.
    """
    shape = survey(listing, size, channels).image

    def read(k: int) -> Tensor:
        return fit(read_picture(listing.files[k], shape[0]), shape)

    images: Any = StoredImages(read, torch.arange(len(listing.files)), shape)
    if not streaming:
        images = torch.empty(images.shape, dtype=torch.uint8)
        for k in range(len(images)):
            images[k] = read(k)
    return _dataset(Split(images, listing.labels), listing, name, shape, seed)


def _dataset(everything: Split, listing: Listing, name: str, shape: tuple[int, int, int], seed: int) -> Dataset:
    parts, splits = assign(listing, seed), {}
    for part in ("train", "validation", "test"):
        index = torch.tensor([k for k, p in enumerate(parts) if p == part], dtype=torch.int64)
        splits[part] = everything.select(index) if len(index) else None
    train, test = splits["train"], splits["test"]
    if train is None or test is None:
        raise ValueError(f"{name}: expected examples to train on and to test on, got {parts.count('train')} and "
                         f"{parts.count('test')}; see its column split, or its folders")  # fmt: skip
    return Dataset(name, train, test, len(listing.class_names), shape, listing.multilabel, listing.class_names,
                   splits["validation"])


def fit(picture: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """uint8 (C, H, W) stretched to `shape`."""
    if tuple(picture.shape[1:]) == shape[1:]:
        return picture
    return resize(picture[None], (shape[1], shape[2]))[0]


def read_pictures(
    kind: str, root: Root = None, *, path: str, size: Sequence[int] = (), channels: int = 0,
    class_names: Sequence[str] = (), multilabel: bool | None = None, examples: int = 0, seed: int = 0,
    streaming: bool = False,
) -> Dataset:
    """Your own pictures. kind: "images", a folder at `path`; "table", a .csv; "hub", a name or a folder of data files.

    size (height, width) and channels: what all pictures are brought to, chosen from a sample by default.
    class_names, multilabel and examples: what a model was trained with. streaming: leave the pictures on disk.
    """
    listing = same_labels(LISTS[kind](path, class_names), path, multilabel, examples)
    return read_listing(listing, kind, size, channels, seed, streaming)


def same_labels(listing: Listing, path: str, multilabel: bool | None, examples: int = 0) -> Listing:
    """Raises, or warns, where the data are not those a model was trained with.

    A change of the number of examples (0: not known) changes which of them are held out.
    """
    if multilabel not in (None, listing.multilabel):
        raise ValueError(f"{path}: expected {'several labels' if multilabel else 'one label'} an example, as the "
                         "model was trained with")  # fmt: skip
    if "" in listing.parts and examples not in (0, len(listing.files)):
        warnings.warn(f"{path}: {len(listing.files):,} examples, {examples:,} when the model was trained: others are "
                      "held out now, and it was trained on some of them; train it again, or keep those it never saw in "
                      "a part test", stacklevel=4)  # fmt: skip
    return listing


def read_text(
    root: Root = None, *, path: str, class_names: Sequence[str] = (), multilabel: bool | None = None,
    examples: int = 0, seed: int = 0,
) -> Dataset:
    """Texts and labels of a table; a transformer's hidden states are computed batch by batch."""
    listing = same_labels(list_text(path, class_names), path, multilabel, examples)
    images = torch.empty(len(listing.files), 0, 0, 0, dtype=torch.uint8)
    return _dataset(Split(images, listing.labels, {}, tuple(listing.files)), listing, "text", (0, 0, 0), seed)
