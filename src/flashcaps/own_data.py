"""Your own pictures as a data set: a folder per class, a table, or a data set of the Hugging Face hub.

    dataset = load_data("images", path="pets")              # pets/cat/*.png, pets/dog/*.jpg
    dataset = load_data("table", path="scenes.csv")         # file,label  or  file,sea,sky,people with 0 and 1

Importing this module adds "images", "table" and "hub" to the data sets `load_data` knows.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .batches import HeldImages
from .data import DATA, Dataset, Split
from .data._files import Root
from .data.augment import resize

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".npy")
PARTS = {"train": "train", "training": "train", "val": "validation", "valid": "validation",
         "validation": "validation", "dev": "validation", "test": "test", "testing": "test"}  # fmt: skip
FILE_COLUMNS = ("file", "image", "path", "filename", "file_name")
LABEL_COLUMNS = ("label", "labels", "class", "target")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_SIDE = 128  # of images nobody gave a size for
SAMPLE = 200  # pictures looked at to choose a size


class Listing(NamedTuple):
    """What there is, before a picture is read. labels (N,) int64, or multi-hot (N, K); parts: "" is not assigned."""

    files: Sequence[Any]  # paths, or pictures that are opened when asked for
    labels: Tensor
    parts: list[str]
    class_names: tuple[str, ...]

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2


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
    if isinstance(source, str | Path) and Path(source).suffix == ".npy":
        try:
            return _array(np.load(source), channels, str(source))
        except (EOFError, OSError) as error:
            raise ValueError(f"{source}: not a whole array ({error}); remove or replace it") from None
    if isinstance(source, np.ndarray):
        return _array(source, channels, "array")
    image = _open(source)
    wanted = channels or (1 if image.mode in ("1", "L", "I", "I;16", "F") else 3)
    if wanted not in MODES:
        raise ValueError(f"{source}: expected {wanted} channels, got a picture; give a .npy array ({wanted}, H, W)")
    if image.mode.startswith("I"):  # 16 bits a pixel, whose high byte convert() would not take
        image = _pillow().fromarray((np.asarray(image) // 257).astype(np.uint8))
    pixels = np.asarray(image.convert(MODES[wanted]))
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], wanted).permute(2, 0, 1).contiguous()


def _open(source: Any) -> Any:
    image = _pillow()
    if hasattr(source, "convert"):
        return source
    try:
        opened = image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        opened.load()
        opened = importlib.import_module("PIL.ImageOps").exif_transpose(opened)  # as a camera was held
    except (OSError, SyntaxError, ValueError) as error:
        where = "stdin" if isinstance(source, bytes) else source
        raise ValueError(f"{where}: not a whole picture ({error}); remove or replace it") from None
    return opened


def _array(x: np.ndarray, channels: int, where: str) -> Tensor:
    if x.ndim == 2:
        x = x[None]
    if x.ndim != 3:
        raise ValueError(f"{where}: expected (H, W), (H, W, C) or (C, H, W), got {x.shape}")
    if x.shape[0] > 4 >= x.shape[2] or (channels and x.shape[2] == channels != x.shape[0]):
        x = x.transpose(2, 0, 1)
    if channels and x.shape[0] != channels:
        raise ValueError(f"{where}: expected {channels} channels, got {x.shape[0]} in {x.shape}")
    if x.dtype.kind == "f":
        if not (x.min() >= 0 and x.max() <= 1):
            raise ValueError(f"{where}: expected numbers from 0 to 1, got {x.min():g} to {x.max():g}; scale them")
        x = (x * 255).round()
    return torch.from_numpy(np.ascontiguousarray(x.astype(np.uint8)))


def list_folder(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """A folder per class, or folders train, val and test with a folder per class in each."""
    base = _folder(path)
    inner = [d for d in sorted(base.iterdir()) if d.is_dir() and not d.name.startswith(".")]
    parts = [(d, PARTS[d.name.lower()]) for d in inner if d.name.lower() in PARTS]
    if not any(part == "train" for _, part in parts):
        parts = [(base, "")]
    found: list[tuple[Path, str, str]] = []
    for folder, part in parts:
        for of_class in sorted(d for d in folder.iterdir() if d.is_dir() and not d.name.startswith(".")):
            files = sorted(f for f in of_class.rglob("*") if f.suffix.lower() in SUFFIXES)
            found += [(f, of_class.name, part) for f in files]
    if not found:
        raise ValueError(f"{base}: no pictures in folders; expected one folder per class, as {base}/cat/1.png")
    names = _names([c for _, c, part in found if part in ("", "train")], class_names, str(base))
    labels = torch.tensor([_place(names, c, str(f)) for f, c, _ in found])
    return Listing([f for f, _, _ in found], labels, [part for _, _, part in found], names)


def _folder(path: str | Path) -> Path:
    base = Path(path).expanduser()
    if not base.is_dir():
        raise FileNotFoundError(f"--images: no folder {path}; give one that holds a folder of pictures per class")
    return base


def _names(seen: Sequence[str], given: Sequence[str], where: str) -> tuple[str, ...]:
    """The classes in order: those given (a model knows them already), or all seen, numbers as numbers."""
    if given:
        return tuple(given)
    names = sorted(set(seen), key=lambda c: (0, int(c), c) if c.isdigit() else (1, 0, c))
    if len(names) < 2:
        raise ValueError(f"{where}: expected at least two classes, got {', '.join(names) or 'none'}")
    return tuple(names)


def _place(names: tuple[str, ...], name: str, where: str) -> int:
    if name not in names:
        raise ValueError(f"{where}: no class {name!r} among those of training ({', '.join(names)})")
    return names.index(name)


def list_table(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """A .csv or .tsv with a header: a file column, then one label column or one column of 0 and 1 per class.

    Labels joined by | or ; are several at once. A column "split" says train, val or test. Files are relative to the
    table.
    """
    table = Path(path).expanduser()
    if not table.is_file():
        raise FileNotFoundError(f"--table: no file {path}; give a .csv with columns file and label")
    with table.open(newline="", encoding="utf-8-sig") as text:
        rows = list(csv.DictReader(text, delimiter="\t" if table.suffix == ".tsv" else ","))
    if not rows:
        raise ValueError(f"{table}: no rows; expected a header such as file,label and a row per picture")
    columns = list(rows[0])
    file = next((c for c in columns if c.lower() in FILE_COLUMNS), columns[0])
    split = next((c for c in columns if c.lower() == "split"), None)
    files = [table.parent / row[file] for row in rows]
    missing = next((f for f in files if not f.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"{table}: no file {missing}; paths in column {file!r} are relative to the table")
    parts = [_part(row[split], table) if split else "" for row in rows]
    labels, names = _labels(rows, [c for c in columns if c not in (file, split)], class_names, str(table))
    return Listing(files, labels, parts, names)


def _part(word: str, table: Path) -> str:
    if word.lower() not in PARTS:
        raise ValueError(f"{table}: split: expected train, val or test, got {word!r}")
    return PARTS[word.lower()]


def _labels(
    rows: list[dict[str, str]], columns: list[str], given: Sequence[str], where: str
) -> tuple[Tensor, tuple[str, ...]]:
    named = next((c for c in columns if c.lower() in LABEL_COLUMNS), None)
    if named is None and len(columns) > 1:
        if any(row[c] not in ("0", "1") for row in rows for c in columns):
            raise ValueError(f"{where}: expected a column label, or 0 and 1 in {', '.join(columns)}")
        names = tuple(given or columns)
        return torch.tensor([[float(row[c]) for c in names] for row in rows]), names
    if named is None and not columns:
        raise ValueError(f"{where}: expected a column label beside the files, got none")
    words = [row[named or columns[0]] for row in rows]
    if not any(mark in word for word in words for mark in "|;"):
        names = _names(words, given, where)
        return torch.tensor([_place(names, word, where) for word in words]), names
    several = [[w.strip() for w in word.replace(";", "|").split("|") if w.strip()] for word in words]
    names = _names([w for ws in several for w in ws], given, where)
    labels = torch.zeros(len(rows), len(names))
    for row, ws in zip(labels, several, strict=True):
        row[[_place(names, w, where) for w in ws]] = 1
    return labels, names


class Column(Sequence[Any]):
    """The pictures of a data set of the hub, each decoded when it is asked for."""

    def __init__(self, rows: Any, column: str) -> None:
        self.rows, self.column = rows, column

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[int(index)][self.column]


class Joined(Sequence[Any]):
    """Several columns as one."""

    def __init__(self, parts: list[Column]) -> None:
        self.places = [(part, k) for part in parts for k in range(len(part))]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        part, k = self.places[index]
        return part[k]


def list_hub(path: str, class_names: Sequence[str] = (), *, datasets: Any = None) -> Listing:
    """A data set of the hub, or local files that `datasets.load_dataset` reads, with columns image and label."""
    if datasets is None:
        try:
            datasets = importlib.import_module("datasets")
        except ImportError:
            raise ImportError("--dataset needs the datasets package: pip install 'flashcaps[hub]'") from None
    loaded = datasets.load_dataset(path)
    splits = {PARTS[name.lower()]: rows for name, rows in loaded.items() if name.lower() in PARTS}
    if "train" not in splits:
        raise ValueError(f"--dataset: {path} has no split train, only {', '.join(loaded)}")
    features = splits["train"].features
    image, label = (next((c for c in features if c in known), None) for known in (("image", "img"), LABEL_COLUMNS))
    if image is None or label is None:
        raise ValueError(f"--dataset: {path}: expected columns image and label, got {', '.join(features)}")
    known = getattr(features[label], "names", None)
    words = [known[v] if known else str(v) for rows in splits.values() for v in rows[label]]
    names = _names(words, class_names or known or (), path)
    parts = [part for part, rows in splits.items() for _ in range(len(rows))]
    if "test" not in splits:
        parts = ["" if part == "train" else part for part in parts]
    labels = torch.tensor([_place(names, w, path) for w in words])
    return Listing(Joined([Column(rows, image) for rows in splits.values()]), labels, parts, names)


LISTS: dict[str, Callable[..., Listing]] = {"images": list_folder, "table": list_table, "hub": list_hub}


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
    held = assign(listing, 0)
    labels = listing.labels if listing.multilabel else torch.eye(len(listing.class_names))[listing.labels]
    counts = dict(zip(listing.class_names, labels.sum(0).int().tolist(), strict=True))
    return Survey((channels, int(size[0]), int(size[1])), held.count("train"), counts)


def assign(listing: Listing, seed: int) -> list[str]:
    """train, validation or test for every picture. What nobody assigned: of each class 70, 10 and 20 in a hundred."""
    parts = list(listing.parts)
    free = [k for k, part in enumerate(parts) if not part]
    known = set(parts) - {""}
    shuffled = [free[k] for k in torch.randperm(len(free), generator=torch.Generator().manual_seed(seed)).tolist()]
    seen: Counter[int] = Counter()
    for k in shuffled:
        kind = int(listing.labels[k]) if not listing.multilabel else 0
        turn = seen[kind] % 10
        seen[kind] += 1
        parts[k] = "test" if turn in (1, 6) and "test" not in known else "validation" if turn == 4 else "train"
    if "test" not in parts:
        if "validation" not in parts:
            raise ValueError(f"none of {len(parts)} pictures is held out: expected a test part, or two of each class")
        parts = ["test" if part == "validation" else part for part in parts]
    return parts


def read_listing(listing: Listing, name: str, size: Sequence[int] = (), channels: int = 0, seed: int = 0) -> Dataset:
    """Read every picture, brought to one shape, into a Dataset; multi-label targets are (N, K)."""
    shape = survey(listing, size, channels).image
    images = torch.empty(len(listing.files), *shape, dtype=torch.uint8)
    for k in range(len(images)):
        images[k] = fit(read_picture(listing.files[k], shape[0]), shape)
    parts = assign(listing, seed)
    splits = {}
    for part in ("train", "validation", "test"):
        index = torch.tensor([k for k, p in enumerate(parts) if p == part], dtype=torch.int64)
        splits[part] = Split(images[index], listing.labels[index]) if len(index) else None
    train, test = splits["train"], splits["test"]
    assert train is not None
    assert test is not None
    return Dataset(name, train, test, len(listing.class_names), shape, listing.multilabel, listing.class_names,
                   splits["validation"])


def fit(picture: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """uint8 (C, H, W) stretched to `shape`."""
    if tuple(picture.shape[1:]) == shape[1:]:
        return picture
    return resize(picture[None], (shape[1], shape[2]))[0]


class HeldSeveral(HeldImages):
    """Images of several classes each: the answer is every class above the threshold."""

    rule = "threshold"


def held_images(split: Split, crop: int, dataset: Dataset) -> HeldImages:
    """Examples to evaluate on, with one class an image or several."""
    return (HeldSeveral if dataset.multilabel else HeldImages)(split, crop, dataset.classes)


def _reader(kind: str) -> Any:
    def read(
        root: Root = None,
        *,
        path: str,
        size: Sequence[int] = (),
        channels: int = 0,
        class_names: Sequence[str] = (),
        multilabel: bool | None = None,
        seed: int = 0,
    ) -> Dataset:
        listing = LISTS[kind](path, class_names)
        if multilabel not in (None, listing.multilabel):
            raise ValueError(f"{path}: expected {'several labels' if multilabel else 'one label'} a picture, as the "
                             "model was trained with")  # fmt: skip
        return read_listing(listing, kind, size, channels, seed)

    return read


DATA.update({kind: _reader(kind) for kind in LISTS})
