"""Your own data: pictures in a folder per class, in a table or in a data set of the Hugging Face hub; tables of numbers
and of texts; any torch.utils.data.Dataset of (image, label).

    dataset = load_data("images", path="pets")              # pets/cat/*.png, pets/dog/*.jpg
    dataset = load_data("table", path="scenes.csv")         # file,label  or  file,sea,sky,people with 0 and 1
    dataset = load_data("numbers", path="iris.csv")         # sepal,petal,label
    dataset = load_data("hub", path="someone/pictures")     # columns image and label
    dataset = load_data("text", path="reviews.csv")         # text,label
    dataset = from_torch(train=TensorDataset(images, labels), test=TensorDataset(more, of_more))
"""

import csv
import hashlib
import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..routing.checks import import_extra
from .augment import resize
from .files import Root
from .split import Dataset, Split, StoredImages

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".npy")
PARTS = {"train": "train", "training": "train", "val": "validation", "valid": "validation",
         "validation": "validation", "dev": "validation", "test": "test", "testing": "test"}  # fmt: skip
FILE_COLUMNS = ("file", "image", "path", "filename", "file_name")
LABEL_COLUMNS = ("label", "labels", "class", "target")
TEXT_COLUMNS = ("text", "sentence", "review", "phrase", "content")
Rows = list[dict[str, str]]
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_SIDE = 128  # of images without a given size
OWN = "a Dataset of your own"  # the name of data given in Python
SAMPLE = 200  # pictures that a size is chosen from


class Listing(NamedTuple):
    """Examples that are not read yet. labels (N,) int64, or multi-hot (N, K). parts: "" if not assigned yet."""

    files: Sequence[Any]  # paths, stored pictures, or texts
    labels: Tensor
    parts: list[str]
    class_names: tuple[str, ...]

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2


def list_folder(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """Lists a folder per class, or folders train, val and test with a folder per class in each."""
    base = Path(path).expanduser()
    if not base.is_dir():
        raise FileNotFoundError(f"--images: no folder {path}; give one that holds a folder of pictures per class")
    inner = [d for d in sorted(base.iterdir()) if d.is_dir() and not d.name.startswith(".")]
    parts = [(d, PARTS[d.name.lower()]) for d in inner if d.name.lower() in PARTS]
    if not any(part == "train" for _, part in parts):
        parts = [(base, "")]
    found: list[tuple[Path, str, str]] = []
    empty: set[str] = set()
    for folder, part in parts:
        for of_class in sorted(d for d in folder.iterdir() if d.is_dir() and not d.name.startswith(".")):
            pictures = pictures_in(of_class)
            found += [(f, of_class.name, part) for f in pictures]
            empty |= set() if pictures else {of_class.name}
    if not found:
        inside, why = base, ""
        if parts[0][1]:
            inside, why = parts[0][0], f" ({parts[0][0].name} is taken for a split; rename it if it is a class)"
        raise ValueError(f"{base}: no pictures in folders; expected one folder per class, as {inside}/cat/1.png{why}")
    if missing := sorted(empty - {c for _, c, _ in found} - set(class_names)):
        warnings.warn(f"{base}: no pictures in {', '.join(missing)}, which is left out of the classes; remove it, or "
                      f"add files that end in {', '.join(SUFFIXES)}", stacklevel=4)  # fmt: skip
    names = _names([c for _, c, part in found if part in ("", "train")], class_names, str(base))
    labels = _indices(names, [c for _, c, _ in found], [str(f) for f, _, _ in found])
    return Listing([f for f, _, _ in found], labels, [part for _, _, part in found], names)


def pictures_in(folder: Path) -> list[Path]:
    """All pictures below a folder, by their suffix, without hidden files and what lies in hidden folders."""
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and not f.is_dir()
                  and not any(part.startswith(".") for part in f.relative_to(folder).parts))  # fmt: skip


def _names(seen: Sequence[str], given: Sequence[str], where: str) -> tuple[str, ...]:
    """The classes in order: those given, which a model already has, or all seen, with numbers in numerical order."""
    if given:
        return tuple(given)
    names = sorted(set(seen), key=lambda c: (0, int(c), c) if c.isdecimal() and len(c) < 100 else (1, 0, c))
    if len(names) < 2:
        raise ValueError(f"{where}: expected at least two classes, got {', '.join(names) or 'none'}")
    return tuple(names)


def _indices(names: tuple[str, ...], words: Sequence[str], where: str | Sequence[str]) -> Tensor:
    """The class of each word, (N,) int64; `where` names the source of all words, or of each."""
    index = {name: k for k, name in enumerate(names)}
    unknown = next((k for k, word in enumerate(words) if word not in index), None)
    if unknown is not None:
        source = where if isinstance(where, str) else where[unknown]
        raise ValueError(f"{source}: no class {words[unknown]!r} among those of training ({', '.join(names)})")
    return torch.tensor([index[word] for word in words], dtype=torch.int64)


def list_table(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """Lists a .csv or .tsv with a header: a column of files, and one of labels or a column of 0 and 1 per class.

    Several labels are joined by | or ;. A column "split" has train, val or test. Paths are relative to the table.
    """
    table, rows, columns = read_rows(path, "--table", "file,label")
    file = next((c for c in columns if c.lower() in FILE_COLUMNS), columns[0])
    if os.path.isfile(table.parent / file):
        raise ValueError(f"{table}: expected a header, got a file, {file}; add a first line file,label")
    files = [table.parent / row[file] for row in rows]
    missing = next((f for f in files if not os.path.isfile(f)), None)  # os.path, as Path raises for impossible paths
    if missing is not None:
        raise FileNotFoundError(f"{table}: no file {str(missing)[:300]}; paths in column {file!r} are relative to the "
                                "table. A table of numbers needs a column named label, and numbers in all others")
    return _listing(files, file, table, rows, columns, class_names)


def holds_numbers(path: str | Path) -> bool:
    """Whether a table has a column of labels by its name, no column of files, and numbers in all other columns."""
    _, rows, columns = read_rows(path, "--table", "file,label")
    features = feature_columns(columns)
    files = any(c.lower() in FILE_COLUMNS for c in columns)
    first = [_number(rows[0][c]) for c in features if rows[0][c].strip()]  # read_features refuses empty fields
    return len(first) > 0 and len(features) < len(columns) and not files and None not in first


def feature_columns(columns: list[str]) -> list[str]:
    """The columns other than label and split."""
    return [c for c in columns if c.lower() not in (*LABEL_COLUMNS, "split")]


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_features(table: Path, rows: Rows, columns: Sequence[str]) -> Tensor:
    """(N, F) float64: these columns of a table of numbers, as their scale is not known yet."""
    for column in columns:
        if column not in rows[0]:
            raise ValueError(f"{table}: no column {column!r}; expected {', '.join(columns)}")
    values = [[_number(row[c]) for c in columns] for row in rows]
    for k, numbers in enumerate(values):
        if None in numbers:
            column = columns[numbers.index(None)]
            raise ValueError(f"{table}: row {k + 1}: expected a number in column {column!r}, got {rows[k][column]!r}")
    return torch.tensor(values, dtype=torch.float64)


def list_numbers(path: str | Path, class_names: Sequence[str] = (), features: Sequence[str] = ()) -> Listing:
    """Lists a .csv or .tsv with a header: columns of numbers, and a column label (and split) as in `list_table`.

    features: the columns to read, in this order; by default all but label and split.
    """
    table, rows, columns = read_rows(path, "--table", "height,width,label")
    numbers = read_features(table, rows, features or feature_columns(columns))
    rest = [c for c in columns if c not in feature_columns(columns)]
    return _listing(list(numbers), "", table, rows, rest, class_names)


def list_text(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """Lists a .csv or .tsv with a header: a column text, and labels (and a column split) as in `list_table`."""
    table, rows, columns = read_rows(path, "--text", "text,label")
    text = next((c for c in columns if c.lower() in TEXT_COLUMNS), columns[0])
    texts = [row[text].strip() for row in rows]
    if "" in texts:
        raise ValueError(f"{table}: row {texts.index('') + 1}: expected text in column {text!r}, got none")
    return _listing(texts, text, table, rows, columns, class_names)


def _listing(files: Sequence[Any], column: str, table: Path, rows: Rows, columns: list[str],
             class_names: Sequence[str]) -> Listing:
    """The examples of a table whose `column` holds the files or texts."""
    split = next((c for c in columns if c.lower() == "split"), None)
    words = [row[split].strip() if split else "" for row in rows]
    wrong = next((word for word in words if split and word.lower() not in PARTS), None)
    if wrong is not None:
        raise ValueError(f"{table}: split: expected train, val or test, got {wrong!r}")
    parts = [PARTS[word.lower()] if split else "" for word in words]
    labels, names = _labels(rows, [c for c in columns if c not in (column, split)], class_names, str(table))
    return Listing(files, labels, parts, names)


def read_rows(path: str | Path, flag: str, header: str) -> tuple[Path, Rows, list[str]]:
    """(the file, its rows, its columns) of a .csv or .tsv. flag, header: the option and an example header, for errors.

    Fields are separated by commas, or by the semicolons or tabs of the header. Columns without a name are left out.
    """
    table = Path(path).expanduser()
    if not table.is_file():
        raise FileNotFoundError(f"{flag}: no file {path}; give a .csv that begins with {header}")
    with table.open(newline="", encoding="utf-8-sig") as lines:
        try:
            first = lines.readline()
            lines.seek(0)
            mark = "\t" if table.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
            reader = csv.DictReader(lines, restval="", delimiter=mark, skipinitialspace=True)
            reader.fieldnames = [c.strip() for c in reader.fieldnames or ()]
            rows = list(reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{table}: not a table in UTF-8 ({error}); save it as .csv in UTF-8") from None
    if not rows:
        raise ValueError(f"{table}: no rows; expected a header such as {header} and a row per example")
    long = next((k for k, row in enumerate(rows) if any(row.get(None, ()))), None)  # None: fields beyond the header
    if long is not None:
        raise ValueError(f"{table}: row {long + 1}: more fields than the header has; put text with {mark!r} in it "
                         "between double quotes")
    columns = [c for c in reader.fieldnames if c]
    twice = next((c for c in columns if columns.count(c) > 1), None)
    if twice is not None:
        raise ValueError(f"{table}: two columns {twice!r}; expected one, rename the other")
    return table, rows, columns


def _labels(rows: Rows, columns: list[str], given: Sequence[str], where: str) -> tuple[Tensor, tuple[str, ...]]:
    named = next((c for c in columns if c.lower() in LABEL_COLUMNS), None)
    if named is None and len(columns) > 1:
        return _by_column(rows, columns, given, where)
    if named is None and not columns:
        raise ValueError(f"{where}: expected a column label beside the files, got none")
    column = named or columns[0]
    words = [row[column].strip() for row in rows]
    if not any(mark in word for word in words for mark in "|;"):
        if "" in words:
            raise ValueError(f"{where}: row {words.index('') + 1}: expected a label in column {column!r}, got none")
        if named is None and column in words:
            raise ValueError(f"{where}: expected a header, got a first line with the label {column!r}; add a header")
        names = _names(words, given, where)
        return _indices(names, words, where), names
    several = [[w.strip() for w in word.replace(";", "|").split("|") if w.strip()] for word in words]
    names = _names([w for ws in several for w in ws], given, where)
    labels = torch.zeros(len(rows), len(names))
    for row, ws in zip(labels, several, strict=True):
        row[_indices(names, ws, where)] = 1
    return labels, names


def _by_column(rows: Rows, columns: list[str], given: Sequence[str], where: str) -> tuple[Tensor, tuple[str, ...]]:
    """The labels (N, K) and classes of a table with a column of 0 and 1 per class."""
    for k, row in enumerate(rows):
        wrong = next((c for c in columns if row[c].strip() not in ("0", "1")), None)
        if wrong is not None:
            raise ValueError(f"{where}: expected a column label, or 0 and 1 in {', '.join(columns)}; row {k + 1} has "
                             f"{row[wrong]!r} in {wrong}")  # fmt: skip
    names = tuple(given or columns)
    absent = next((c for c in names if c not in columns), None)
    if absent is not None:
        raise ValueError(f"{where}: no column {absent!r}, a class of training; expected {', '.join(names)}")
    return torch.tensor([[float(row[c]) for c in names] for row in rows]), names


class HubPictures(Sequence[Any]):
    """The pictures of a data set of the hub, which are read from memory-mapped files one by one."""

    def __init__(self, rows: Any, column: str, name: str) -> None:
        self.rows, self.column, self.name = rows, column, name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        stored = self.rows[int(index)][self.column]  # {"bytes", "path"}: one of them may be None
        if stored["bytes"] is None:
            return stored["path"]
        content: Any = io.BytesIO(stored["bytes"])
        content.name = f"{self.name}: row {index}"  # for errors
        return content


def list_hub(path: str, class_names: Sequence[str] = ()) -> Listing:
    """Lists a data set of the hub, or a folder for `datasets.load_dataset`, with columns image and label."""
    datasets = import_extra("datasets", "hub", "--dataset")
    try:
        loaded = datasets.load_dataset(path)
    except (ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise ValueError(f"--dataset: {path}: `datasets` cannot read it ({error})") from None
    splits = {PARTS[name.lower()]: rows for name, rows in loaded.items() if name.lower() in PARTS}
    if "train" not in splits:
        raise ValueError(f"--dataset: {path} has no split train, only {', '.join(loaded)}")
    features = splits["train"].features
    image, label = (next((c for c in features if c in known), None) for known in (("image", "img"), LABEL_COLUMNS))
    if image is None or label is None:
        raise ValueError(f"--dataset: {path}: expected columns image and label, got {', '.join(features)}")
    rows = datasets.concatenate_datasets(list(splits.values())).cast_column(image, datasets.Image(decode=False))
    known, numbers = getattr(features[label], "names", None), list(rows[label])
    if known and (wrong := next((v for v in numbers if not 0 <= v < len(known)), None)) is not None:
        raise ValueError(f"--dataset: {path}: expected labels from 0 to {len(known) - 1}, got {wrong}")
    words = [known[v] if known else str(v) for v in numbers]
    names = _names(words, class_names or known or (), path)
    parts = [part for part, inner in splits.items() for _ in range(len(inner))]
    if "test" not in splits:
        parts = ["" if part == "train" else part for part in parts]
    return Listing(HubPictures(rows, image, path), _indices(names, words, path), parts, names)


def assign(listing: Listing, seed: int) -> list[str]:
    """The part of every example. Those without one are split within their class: 70, 10 and 20 %."""
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
            rest = "a test part beside train" if known else "two of some class"
            raise ValueError(f"none of {len(parts)} examples is held out to test on: expected {rest}, got none")
        parts = ["test" if part == "validation" else part for part in parts]
    return parts


LISTS: dict[str, Callable[..., Listing]] = {"images": list_folder, "table": list_table, "hub": list_hub}


def read_picture(source: Any, channels: int = 0) -> Tensor:
    """A file, bytes, array or opened picture as uint8 (C, H, W). channels: 1 grey, 3 colour, 4 with alpha; 0: its own.

    Arrays (.npy) are (H, W), (H, W, C) or (C, H, W), of bytes or of numbers in [0, 1], and keep their channels.
    """
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".npy":
        try:
            loaded = np.load(source)
        except (EOFError, OSError) as error:
            raise ValueError(f"{source}: not a whole array ({error}); remove or replace it") from None
        except ValueError:  # whose message advises to unpickle it
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
    """A picture that convert() does not distort: 16 bits and fractions become bytes, transparency becomes white."""
    from PIL import Image  # takes a tenth of a second, which data without pictures do not need

    if image.mode == "F" or image.mode.startswith("I"):
        x = np.asarray(image)
        most = 65535 if image.mode != "F" else 1 if x.max() <= 1 else 255
        return Image.fromarray(_bytes(x, most, _where(source)))
    if channels != 4 and (image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info):
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def _where(source: Any) -> str:
    if isinstance(source, bytes):
        return "stdin"
    return str(source) if isinstance(source, str | Path) else getattr(source, "name", "picture")


def _open(source: Any) -> Any:
    if hasattr(source, "convert"):
        return source
    from PIL import Image, ImageOps

    try:
        opened: Any = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        opened.load()
        opened = ImageOps.exif_transpose(opened)  # upright, however the camera was held
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
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
    return torch.from_numpy(np.ascontiguousarray(_bytes(x, 255 if x.dtype.kind in "iu" else 1, where)))


def _bytes(x: np.ndarray, most: int, where: str) -> np.ndarray:
    """Numbers from 0 to `most` as uint8."""
    if not (x.min() >= 0 and x.max() <= most):
        raise ValueError(f"{where}: expected numbers from 0 to {most}, got {x.min():g} to {x.max():g}; scale them")
    return (x * (255 / most)).round().astype(np.uint8)


def survey(listing: Listing, size: Sequence[int] = (), channels: int = 0) -> tuple[int, int, int]:
    """(C, H, W) for all pictures: `size`, or the median of a sample, with a longer side of at most 128 pixels."""
    n = len(listing.files)
    sample = [listing.files[k * n // min(n, SAMPLE)] for k in range(min(n, SAMPLE))]
    shapes = [tuple(read_picture(f).shape) for f in sample]
    if not channels:
        channels = max(shape[0] for shape in shapes)
    if not size:
        height, width = (int(np.median([shape[k] for shape in shapes])) for k in (1, 2))
        scale = min(1.0, MAX_SIDE / max(height, width))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return channels, int(size[0]), int(size[1])


def count_classes(listing: Listing) -> dict[str, int]:
    """The number of examples of each class."""
    labels = listing.labels if listing.multilabel else torch.eye(len(listing.class_names))[listing.labels]
    return dict(zip(listing.class_names, labels.sum(0).int().tolist(), strict=True))


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
    class_names: Sequence[str] = (), multilabel: bool | None = None, examples: int | str = 0, seed: int = 0,
    streaming: bool = False,
) -> Dataset:
    """Your own pictures. kind: "images", a folder at `path`; "table", a .csv; "hub", a name or a folder of data files.

    size (height, width) and channels: those of all pictures, chosen from a sample by default. class_names, multilabel
    and examples: those that a model was trained with. streaming: pictures stay on disk and are read batch by batch.
    """
    listing = same_labels(LISTS[kind](path, class_names), path, multilabel, examples)
    shape = survey(listing, size, channels)

    def read(k: int) -> Tensor:
        return fit(read_picture(listing.files[k], shape[0]), shape)

    images: Any = StoredImages(read, torch.arange(len(listing.files)), shape)
    if not streaming:
        images = torch.empty(images.shape, dtype=torch.uint8)
        for k in range(len(images)):
            images[k] = read(k)
    return _dataset(Split(images, listing.labels), listing, kind, shape, seed)


def read_numbers(
    root: Root = None, *, path: str, columns: Sequence[str] = (), mean: Sequence[float] = (), std: Sequence[float] = (),
    class_names: Sequence[str] = (), multilabel: bool | None = None, examples: int | str = 0, seed: int = 0,
) -> Dataset:  # fmt: skip
    """The rows of a table as images (F, 1, 1), a channel per column: (x - mean) / std, by default of the training rows.

    columns, mean and std, (F,) each: those that a model was trained with.
    """
    listing = same_labels(list_numbers(path, class_names, columns), path, multilabel, examples)
    if not mean:
        mean, std = feature_scale(listing, seed)
    x = scaled(torch.stack(list(listing.files)), mean, std)
    return _dataset(Split(x, listing.labels), listing, "numbers", (x.shape[1], 1, 1), seed)


def scaled(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """x (N, F) float64 -> (x - mean) / std as images (N, F, 1, 1) float32."""
    return ((x - x.new_tensor(mean)) / x.new_tensor(std)).float()[:, :, None, None]


def feature_scale(listing: Listing, seed: int = 0) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of every column over the rows to train on; 1 for a column that is constant."""
    used = torch.stack([row for row, part in zip(listing.files, assign(listing, seed), strict=True) if part == "train"])
    varies = (used != used[0]).any(0)  # the deviation of equal numbers is what their mean was rounded by, not always 0
    return used.mean(0).tolist(), torch.where(varies, used.std(0, correction=0), 1).tolist()


def fingerprint(listing: Listing) -> str:
    """A checksum of the examples' file names or content and labels, in order: `assign` goes by their places."""
    files = () if isinstance(listing.files, HubPictures) else listing.files  # whose names are not known
    names = [file.tolist() if isinstance(file, Tensor) else getattr(file, "name", file) for file in files]
    return hashlib.sha256(repr((names, listing.labels.tolist(), listing.parts)).encode()).hexdigest()[:16]


def same_labels(listing: Listing, path: str, multilabel: bool | None, examples: int | str = 0) -> Listing:
    """The listing. Raises, or warns, if a model was trained with other data.

    examples: the `fingerprint` then, or the number of examples; 0 if it is not known. If it has changed, other examples
    are held out.
    """
    if multilabel not in (None, listing.multilabel):
        raise ValueError(f"{path}: expected {'several labels' if multilabel else 'one label'} an example, as the "
                         "model was trained with")  # fmt: skip
    if "" in listing.parts and examples not in (0, len(listing.files), fingerprint(listing)):
        warnings.warn(f"{path}: these are not the examples, in the order, that the model was trained with: others are "
                      "held out now, and it was trained on some of them; train it again, or keep those it never saw in "
                      "a part test", stacklevel=4)  # fmt: skip
    return listing


def read_text(
    root: Root = None, *, path: str, class_names: Sequence[str] = (), multilabel: bool | None = None,
    examples: int | str = 0, seed: int = 0,
) -> Dataset:
    """Texts and labels of a table, for whose batches a transformer computes hidden states."""
    listing = same_labels(list_text(path, class_names), path, multilabel, examples)
    images = torch.empty(len(listing.files), 0, 0, 0, dtype=torch.uint8)
    return _dataset(Split(images, listing.labels, {}, tuple(listing.files)), listing, "text", (0, 0, 0), seed)


def from_torch(
    train: Any, test: Any, validation: Any = None, *, class_names: Sequence[str] = (), streaming: bool = False
) -> Dataset:
    """Data sets whose items are (image, label), with a length.

    An image is a tensor or array (C, H, W) of bytes or floats, whose values are kept, or a PIL picture. A label is a
    class from 0, or (K,) of 0 and 1 for several at once. Items are read once. streaming: several threads read images
    anew for every batch, as random transforms and large data need it; labels are read once.
    """
    given = {"train": train, "test": test, "validation": validation}
    splits = {name: _torch_split(name, data, streaming) for name, data in given.items() if data is not None}
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
    return Dataset(OWN, whole, splits["test"], max(classes, len(class_names)), (c, h, w), several,
                   tuple(class_names), splits.get("validation"))  # fmt: skip


def _torch_split(name: str, data: Any, streaming: bool) -> Split:
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data)):
        raise TypeError(f"{name}: expected a torch.utils.data.Dataset with a length of at least 1, got "
                        f"{type(data).__name__}; read an iterable one into a list of (image, label)")  # fmt: skip
    first = _torch_image(data[0][0])
    shape, dtype = first.shape, first.dtype

    def read(k: int) -> tuple[Tensor, Tensor]:
        item = data[k]
        image = _torch_image(item[0])
        if image.shape != shape or image.dtype != dtype or image.ndim != 3:
            raise ValueError(f"{name}[{k}]: expected an image (C, H, W) like the first, {tuple(shape)} {dtype}, got "
                             f"{tuple(image.shape)} {image.dtype}; bring all to one size")  # fmt: skip
        return image, torch.as_tensor(item[1])

    images: Any = StoredImages(lambda k: read(k)[0], torch.arange(len(data)), shape, dtype=dtype)
    if streaming:
        labels = torch.stack([torch.as_tensor(data[k][1]) for k in range(len(data))])
    else:  # a random item may have another image and label when it is read again
        images, labels = map(torch.stack, zip(*map(read, range(len(data))), strict=True))
    classes = labels.ndim == 1 and not labels.is_floating_point() and int(labels.min()) >= 0
    if not classes and not (labels.ndim == 2 and bool(((labels == 0) | (labels == 1)).all())):
        raise ValueError(f"{name}: expected labels that are classes from 0, or rows of 0 and 1, got {labels.dtype} "
                         f"{tuple(labels.shape)} from {labels.min().item()} to {labels.max().item()}")  # fmt: skip
    return Split(images, labels.long() if classes else labels.float())


def _torch_image(image: Any) -> Tensor:
    """(C, H, W), bytes or float32."""
    if not isinstance(image, Tensor):
        image = torch.from_numpy(image) if isinstance(image, np.ndarray) else read_picture(image)
    return image if image.dtype == torch.uint8 else image.float()
