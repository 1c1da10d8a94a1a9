"""Your own examples as a list of files and labels: a folder per class, a table, a data set of the hub, texts."""

from __future__ import annotations

import csv
import importlib
import io
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".npy")
PARTS = {"train": "train", "training": "train", "val": "validation", "valid": "validation",
         "validation": "validation", "dev": "validation", "test": "test", "testing": "test"}  # fmt: skip
FILE_COLUMNS = ("file", "image", "path", "filename", "file_name")
LABEL_COLUMNS = ("label", "labels", "class", "target")
TEXT_COLUMNS = ("text", "sentence", "review", "phrase", "content")


class Listing(NamedTuple):
    """Examples before they are read. labels (N,) int64, or multi-hot (N, K); parts: "" is not assigned yet."""

    files: Sequence[Any]  # paths, stored pictures, or texts
    labels: Tensor
    parts: list[str]
    class_names: tuple[str, ...]

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2


def list_folder(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """A folder per class, or folders train, val and test with a folder per class in each."""
    base = Path(path).expanduser()
    if not base.is_dir():
        raise FileNotFoundError(f"--images: no folder {path}; give one that holds a folder of pictures per class")
    inner = [d for d in sorted(base.iterdir()) if d.is_dir() and not d.name.startswith(".")]
    parts = [(d, PARTS[d.name.lower()]) for d in inner if d.name.lower() in PARTS]
    if not any(part == "train" for _, part in parts):
        parts = [(base, "")]
    found: list[tuple[Path, str, str]] = []
    for folder, part in parts:
        for of_class in sorted(d for d in folder.iterdir() if d.is_dir() and not d.name.startswith(".")):
            found += [(f, of_class.name, part) for f in pictures_in(of_class)]
    if not found:
        inside, why = base, ""
        if parts[0][1]:
            inside, why = parts[0][0], f" ({parts[0][0].name} is taken for a split; rename it if it is a class)"
        raise ValueError(f"{base}: no pictures in folders; expected one folder per class, as {inside}/cat/1.png{why}")
    names = _names([c for _, c, part in found if part in ("", "train")], class_names, str(base))
    labels = _indices(names, [c for _, c, _ in found], [str(f) for f, _, _ in found])
    return Listing([f for f, _, _ in found], labels, [part for _, _, part in found], names)


def pictures_in(folder: Path) -> list[Path]:
    """All pictures below a folder, by their suffix, without hidden files."""
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and f.name[0] != "." and not f.is_dir())


def _names(seen: Sequence[str], given: Sequence[str], where: str) -> tuple[str, ...]:
    """The classes in order: those given (a model knows them already), or all seen, numbers as numbers."""
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
    """A .csv or .tsv with a header: a file column, then one label column or one column of 0 and 1 per class.

    Labels joined by | or ; are several at once. A column "split" says train, val or test. Files are relative to the
    table.
    """
    table, rows, columns = read_rows(path, "--table", "file,label")
    file = next((c for c in columns if c.lower() in FILE_COLUMNS), columns[0])
    if os.path.isfile(table.parent / file):
        raise ValueError(f"{table}: expected a header, got a file, {file}; add a first line file,label")
    files = [table.parent / row[file] for row in rows]
    missing = next((f for f in files if not os.path.isfile(f)), None)  # also False for what cannot be a path
    if missing is not None:
        raise FileNotFoundError(f"{table}: no file {str(missing)[:300]}; paths in column {file!r} are relative to the "
                                "table")
    return _listing(files, file, table, rows, columns, class_names)


def list_text(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """A .csv or .tsv with a header: a column text, and labels (and a column split) as in `list_table`."""
    table, rows, columns = read_rows(path, "--text", "text,label")
    text = next((c for c in columns if c.lower() in TEXT_COLUMNS), columns[0])
    texts = [row[text].strip() for row in rows]
    if "" in texts:
        raise ValueError(f"{table}: row {texts.index('') + 1}: expected text in column {text!r}, got none")
    return _listing(texts, text, table, rows, columns, class_names)


def _listing(files: Sequence[Any], column: str, table: Path, rows: list[dict[str, str]], columns: list[str],
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


def read_rows(path: str | Path, flag: str, header: str) -> tuple[Path, list[dict[str, str]], list[str]]:
    """(the file, its rows, its columns) of a .csv or .tsv; errors name the option `flag` and an example of a `header`.

    Fields are divided by commas, or by what divides the header: semicolons, tabs. Columns without a name are left out.
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


def _labels(
    rows: list[dict[str, str]], columns: list[str], given: Sequence[str], where: str
) -> tuple[Tensor, tuple[str, ...]]:
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


def _by_column(
    rows: list[dict[str, str]], columns: list[str], given: Sequence[str], where: str
) -> tuple[Tensor, tuple[str, ...]]:
    """A column of 0 and 1 per class: labels (N, K)."""
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


class StoredPicture(io.BytesIO):
    """The bytes of a picture file, with a name for errors."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class HubPictures(Sequence[Any]):
    """The pictures of a data set of the hub, each read from memory-mapped files when it is asked for."""

    def __init__(self, rows: Any, column: str, name: str) -> None:
        self.rows, self.column, self.name = rows, column, name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        stored = self.rows[int(index)][self.column]  # {"bytes", "path"}: one of them may be None
        if stored["bytes"] is None:
            return stored["path"]
        return StoredPicture(stored["bytes"], f"{self.name}: row {index}")


def list_hub(path: str, class_names: Sequence[str] = ()) -> Listing:
    """A data set of the hub, or a folder of files that `datasets.load_dataset` reads, with columns image and label."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise ImportError("--dataset needs the datasets package: pip install 'flashcaps[hub]'") from None
    try:
        loaded = datasets.load_dataset(path)
    except (ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise ValueError(f"--dataset: {_damaged(path) or path}: `datasets` cannot read it ({error})") from None
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


def _damaged(path: str) -> Path | None:
    """The first .parquet file of a folder that cannot be opened."""
    parquet = importlib.import_module("pyarrow.parquet")
    for file in sorted(Path(path).rglob("*.parquet")):
        try:
            parquet.ParquetFile(file)
        except (ValueError, OSError):
            return file
    return None


def assign(listing: Listing, seed: int) -> list[str]:
    """train, validation or test for every example; those without a part are split 70, 10 and 20 % within each class."""
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
