"""Published data files: how they are described, found and read. Errors name the file, what was expected and found.

Every file is checked, wherever it comes from. Its checksum was computed from a copy, or is the one that its authors or
other libraries publish; the module of each data set says which. `fetch` notes checksums in SHA256SUMS, and a file that
is listed there is checked whenever it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..routing.checks import import_extra

Load = TypeVar("Load", bound=Callable[..., Any])
Root = str | os.PathLike[str] | None
SUMS = "SHA256SUMS"
LIMIT = 4 << 30  # bytes a file may unpack to


class Member(NamedTuple):
    """A file in an archive, and its path under the data set's folder. A size of 0 or a checksum of "" is not known."""

    path: str
    file: str
    size: int = 0
    checksum: str = ""
    content: str = ""


class Remote(NamedTuple):
    """A published file. checksum: "md5:..." or "sha256:..." of its bytes; content: of what a gzip file unpacks to.

    A gzip file with the right `content` is accepted, however it was packed.
    """

    file: str
    urls: tuple[str, ...]
    size: int
    checksum: str
    content: str = ""
    members: tuple[Member, ...] = ()


@dataclass
class Published:
    """A folder under the data root, and the files that belong there."""

    folder: str
    files: tuple[Remote, ...]


def published(*folders: Published) -> Callable[[Load], Load]:
    """Declares which published files a data set reads; `flashcaps data NAME` gets them."""

    def declare(load: Load) -> Load:
        load.published = folders  # type: ignore[attr-defined]
        return load

    return declare


def data_root(root: Root = None) -> Path:
    """`root`, else $FLASHCAPS_DATA, else ~/.cache/flashcaps."""
    return Path(root or os.environ.get("FLASHCAPS_DATA") or "~/.cache/flashcaps").expanduser()


def locate(name: str, root: Root, folders: tuple[str, ...], files: tuple[str, ...]) -> Path:
    """The first of `files` in the first of `folders` under the root that exists, packed as .gz or unpacked."""
    base = data_root(root)
    for folder in folders:
        for file in files:
            for candidate in (base / folder / file, base / folder / file.removesuffix(".gz")):
                if candidate.is_file():
                    return candidate
    raise FileNotFoundError(f"{name}: no {files[0]} in {base / folders[0]}; get it with `flashcaps data {name}`, or "
                            f"`flashcaps data {name} --from DIR` where you have the files")


def wrong(path: Path, expected: object, found: object) -> ValueError:
    remedy = "the file is damaged or of another kind, get it again"
    return ValueError(f"{path}: expected {expected}, found {found}; {remedy}")


def read_bytes(path: Path) -> bytes:
    """The file's content, checked, and unpacked where it is a gzip file, whatever its name."""
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


def read_array(path: Path, magic: bytes, sizes: str, dims: int, dtype: str = "u1", stored: int = 0) -> np.ndarray:
    """An array of `dims` dimensions, .gz or raw: magic, four bytes for each size (of at least `stored`), values."""
    raw = read_bytes(path)
    header = len(magic) + 4 * max(stored, dims)
    if len(raw) < header:
        raise wrong(path, f"a header of {header} bytes", f"{len(raw)} bytes")
    if not raw.startswith(magic):
        raise wrong(path, f"magic {magic.hex()} ({dims} dimensions of {dtype})", raw[:len(magic)].hex())
    shape = np.frombuffer(raw, sizes, dims, len(magic)).tolist()
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if min(shape) < 0 or len(raw) - header != size:
        raise wrong(path, f"{size:,} bytes of {' x '.join(map(str, shape))}", f"{len(raw) - header:,}")
    return np.frombuffer(raw, dtype, offset=header).reshape(shape)


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
    fresh = {file.relative_to(folder).as_posix(): sha256(file) for file in files}
    if fresh.items() <= sums.items():
        return
    part = folder / f".{SUMS}.part"
    part.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted((sums | fresh).items())), encoding="utf-8")
    os.replace(part, folder / SUMS)


def sha256(path: Path) -> str:
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
    matlab, raw = import_extra("scipy.io", "mat", path.name), read_checked(path)
    try:
        content = matlab.loadmat(io.BytesIO(raw))
    except Exception as error:  # scipy raises all kinds of errors for damaged files
        raise wrong(path, "a MATLAB 5 file", f"{len(raw):,} bytes that do not parse ({error})") from None
    if key not in content:
        raise wrong(path, f"a variable {key!r}", sorted(k for k in content if not k.startswith("__")))
    return content[key]
