"""Finding and reading data files; errors name the file, what was expected and what was found.

A folder that `fetch` filled has its files' checksums in SHA256SUMS; a file listed there is checked whenever it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Root = str | os.PathLike[str] | None
SUMS = "SHA256SUMS"
LIMIT = 4 << 30  # bytes a file may unpack to


def data_root(root: Root = None) -> Path:
    """`root`, else $FLASHCAPS_DATA, else ~/.cache/flashcaps."""
    return Path(root or os.environ.get("FLASHCAPS_DATA") or "~/.cache/flashcaps").expanduser()


def locate(name: str, root: Root, folders: tuple[str, ...], files: tuple[str, ...]) -> Path:
    """The first of `files` that is in the first of `folders` under the root, as it is or unpacked from its .gz."""
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
        f"{path}: expected {expected}, found {found}; the file is damaged or of another kind, get it again"
    )


def read_bytes(path: Path) -> bytes:
    """The file's content, checked, and unpacked when it is a gzip file whatever its name."""
    raw = read_checked(path)
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
            content = packed.read(LIMIT + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise wrong(path, "a whole gzip file", f"{len(raw):,} bytes that do not unpack ({error})") from None
    if len(content) > LIMIT:
        raise wrong(path, f"at most {LIMIT:,} bytes unpacked", "more")
    return content


def read_checked(path: Path) -> bytes:
    """The file's bytes; raises where SHA256SUMS lists another checksum for the file."""
    raw = path.read_bytes()
    noted = next((sum_ for folder in (path.parent, path.parent.parent)
                  if (sum_ := read_sums(folder).get(path.relative_to(folder).as_posix()))), None)
    if noted and (found := hashlib.sha256(raw).hexdigest()) != noted:
        raise wrong(path, f"sha256 {noted} as in {SUMS}", f"{found} in {len(raw):,} bytes")
    return raw


def read_sums(folder: Path) -> dict[str, str]:
    """file -> sha256, as `sha256sum` writes and checks it."""
    path = folder / SUMS
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def note_sums(folder: Path, files: Iterable[Path]) -> None:
    """Add checked files to SHA256SUMS."""
    sums = read_sums(folder)
    fresh = {file.relative_to(folder).as_posix(): _sha256(file) for file in files}
    if fresh.items() <= sums.items():
        return
    part = folder / f".{SUMS}.part"
    part.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted((sums | fresh).items())), encoding="utf-8")
    os.replace(part, folder / SUMS)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_labels(path: Path, labels: np.ndarray, count: int, low: int, high: int, what: str = "labels") -> None:
    """Raises unless there is one label for each of `count` images, and every label lies in low..high."""
    if len(labels) != count:
        raise wrong(path, f"{count:,} {what}, one per image", f"{len(labels):,}")
    if labels.size and (labels.min() < low or labels.max() > high):
        raise wrong(path, f"{what} from {low} to {high}", f"{labels.min()} to {labels.max()}")


def load_mat(path: Path, key: str) -> Any:
    """The variable `key` of a MATLAB file."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ImportError(f"reading {path.name} needs scipy: pip install 'flashcaps[mat]'") from None
    raw = read_checked(path)
    try:
        content = loadmat(io.BytesIO(raw))
    except Exception as error:  # scipy answers a damaged file with whatever its parser met first
        raise wrong(path, "a MATLAB 5 file", f"{len(raw):,} bytes that do not parse ({error})") from None
    if key not in content:
        raise wrong(path, f"a variable {key!r}", sorted(k for k in content if not k.startswith("__")))
    return content[key]
