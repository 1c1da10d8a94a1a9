"""Where data lie, and how a broken file is reported: which file, what was expected, what was found."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Root = str | os.PathLike[str] | None


def data_root(root: Root = None) -> Path:
    """`root`, else $FLASHCAPS_DATA, else ~/.cache/flashcaps."""
    return Path(root or os.environ.get("FLASHCAPS_DATA") or "~/.cache/flashcaps").expanduser()


def locate(name: str, root: Root, folders: tuple[str, ...], files: tuple[str, ...]) -> Path:
    """The first of `files` in the first of `folders` under the root that is there.

    Both run from the usual to the unusual; a file may have lost its .gz.
    """
    base = data_root(root)
    for folder in folders:
        for file in files:
            for candidate in (base / folder / file, base / folder / file.removesuffix(".gz")):
                if candidate.is_file():
                    return candidate
    raise FileNotFoundError(
        f"{name}: no {files[0]} in {base / folders[0]}; get it with `flashcaps data {name}`, "
        f"or `flashcaps data {name} --from DIR` where you have the files"
    )


def wrong(path: Path, expected: object, found: object) -> ValueError:
    return ValueError(
        f"{path}: expected {expected}, found {found}; the file is damaged or of another kind, remove it and get it anew"
    )


def read_bytes(path: Path) -> bytes:
    """The file's content, unpacked when it is a gzip file whatever its name."""
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise wrong(path, "a whole gzip file", f"{len(raw):,} bytes that do not unpack ({error})") from None


def check_labels(path: Path, labels: np.ndarray, low: int, high: int, what: str = "labels") -> None:
    """Raise unless every label lies in low..high."""
    if labels.size and (labels.min() < low or labels.max() > high):
        raise wrong(path, f"{what} from {low} to {high}", f"{labels.min()} to {labels.max()}")


def check_same(path: Path, images: int, labels: int) -> None:
    """Raise unless the label file has one label per image."""
    if images != labels:
        raise wrong(path, f"{images:,} labels, one per image", f"{labels:,}")


def load_mat(path: Path, key: str) -> Any:
    """The variable `key` of a MATLAB file."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ImportError(f"reading {path.name} needs scipy: pip install 'flashcaps[mat]'") from None
    try:
        content = loadmat(path)
    except Exception as error:  # scipy answers a damaged file with whatever its parser met first
        raise wrong(path, "a MATLAB 5 file", f"{path.stat().st_size:,} bytes that do not parse ({error})") from None
    if key not in content:
        raise wrong(path, f"a variable {key!r}", sorted(k for k in content if not k.startswith("__")))
    return content[key]
