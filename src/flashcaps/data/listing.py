"""What there is to learn from, before any of it is read: a folder per class, a table, a data set of the hub, texts."""

from __future__ import annotations

import csv
import importlib
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
    """What there is, before a picture is read. labels (N,) int64, or multi-hot (N, K); parts: "" is not assigned."""

    files: Sequence[Any]  # paths, pictures that are opened when asked for, or texts
    labels: Tensor
    parts: list[str]
    class_names: tuple[str, ...]

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2


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
            found += [(f, of_class.name, part) for f in pictures_in(of_class)]
    if not found:
        inside, why = base, ""
        if parts[0][1]:
            inside, why = parts[0][0], f" ({parts[0][0].name} is taken for a split; rename it if it is a class)"
        raise ValueError(f"{base}: no pictures in folders; expected one folder per class, as {inside}/cat/1.png{why}")
    names = _names([c for _, c, part in found if part in ("", "train")], class_names, str(base))
    labels = torch.tensor([_place(names, c, str(f)) for f, c, _ in found])
    return Listing([f for f, _, _ in found], labels, [part for _, _, part in found], names)


def pictures_in(folder: Path) -> list[Path]:
    """All pictures below a folder, by their suffix; hidden ones, as some systems leave beside a file, are not meant."""
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and f.name[0] != "." and not f.is_dir())


def _folder(path: str | Path) -> Path:
    base = Path(path).expanduser()
    if not base.is_dir():
        raise FileNotFoundError(f"--images: no folder {path}; give one that holds a folder of pictures per class")
    return base


def _names(seen: Sequence[str], given: Sequence[str], where: str) -> tuple[str, ...]:
    """The classes in order: those given (a model knows them already), or all seen, numbers as numbers."""
    if given:
        return tuple(given)
    names = sorted(set(seen), key=lambda c: (0, int(c), c) if c.isdecimal() and len(c) < 100 else (1, 0, c))
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
    table, rows, columns = read_rows(path, "--table", "file,label")
    file = next((c for c in columns if c.lower() in FILE_COLUMNS), columns[0])
    if os.path.isfile(table.parent / file):
        raise ValueError(f"{table}: expected a header, got a file, {file}; add a first line file,label")
    split = next((c for c in columns if c.lower() == "split"), None)
    files = [table.parent / row[file] for row in rows]
    missing = next((f for f in files if not os.path.isfile(f)), None)  # False for whatever cannot be a path, too
    if missing is not None:
        raise FileNotFoundError(f"{table}: no file {str(missing)[:300]}; paths in column {file!r} are relative to the "
                                "table")
    parts = [_part(row[split], table) if split else "" for row in rows]
    labels, names = _labels(rows, [c for c in columns if c not in (file, split)], class_names, str(table))
    return Listing(files, labels, parts, names)


def list_text(path: str | Path, class_names: Sequence[str] = ()) -> Listing:
    """A .csv or .tsv with a header: a column text, and labels (and a column split) as in `list_table`."""
    table, rows, columns = read_rows(path, "--text", "text,label")
    text = next((c for c in columns if c.lower() in TEXT_COLUMNS), columns[0])
    split = next((c for c in columns if c.lower() == "split"), None)
    texts = [row[text].strip() for row in rows]
    if "" in texts:
        raise ValueError(f"{table}: row {texts.index('') + 1}: expected text in column {text!r}, got none")
    parts = [_part(row[split], table) if split else "" for row in rows]
    labels, names = _labels(rows, [c for c in columns if c not in (text, split)], class_names, str(table))
    return Listing(texts, labels, parts, names)


def read_rows(path: str | Path, flag: str, header: str) -> tuple[Path, list[dict[str, str]], list[str]]:
    """(the file, its rows, its columns) of a .csv or .tsv; `flag` is who asks, `header` what it should begin with.

    Fields are divided by commas, or by what divides the header: semicolons, tabs. A column without a name counts rows.
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
    long = next((k for k, row in enumerate(rows) if any(row.get(None, ()))), None)  # None: what no column is there for
    if long is not None:
        raise ValueError(f"{table}: row {long + 1}: more fields than the header has; put text with {mark!r} in it "
                         "between double quotes")
    columns = [c for c in reader.fieldnames if c]
    twice = next((c for c in columns if columns.count(c) > 1), None)
    if twice is not None:
        raise ValueError(f"{table}: two columns {twice!r}; expected one, rename the other")
    return table, rows, columns


def _part(word: str, table: Path) -> str:
    word = word.strip()
    if word.lower() not in PARTS:
        raise ValueError(f"{table}: split: expected train, val or test, got {word!r}")
    return PARTS[word.lower()]


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
        return torch.tensor([_place(names, word, where) for word in words]), names
    several = [[w.strip() for w in word.replace(";", "|").split("|") if w.strip()] for word in words]
    names = _names([w for ws in several for w in ws], given, where)
    labels = torch.zeros(len(rows), len(names))
    for row, ws in zip(labels, several, strict=True):
        row[[_place(names, w, where) for w in ws]] = 1
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
            rest = "a test part beside train" if known else "two of some class"
            raise ValueError(f"none of {len(parts)} examples is held out to test on: expected {rest}, got none")
        parts = ["test" if part == "validation" else part for part in parts]
    return parts
