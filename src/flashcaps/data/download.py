"""Getting data sets: from where they are published or from a folder, checked before they count as there.

A file is written beside its place as NAME.part, checked, renamed, and its checksum noted in SHA256SUMS. A download
that stopped goes on from where it was; a wrong one is thrown away; a good file already in place is never touched. Of
several processes that want the same file one gets it and the others wait.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from filelock import FileLock

from . import find_data
from .archive import LIMIT, unpack
from .files import Root, data_root, note_sums, read_sums
from .urls import Member, Remote

Progress = Callable[[str, int, int], None]  # file, bytes done, bytes in all
_CHUNK = 1 << 20
_TIMEOUT_S = 30
_OTHER_FOLDERS = {
    "fashion-mnist": ("fashion_mnist",),
    "cifar10": ("cifar-10-batches-bin",),
    "cifar100": ("cifar-100-binary",),
}


def fetch(name: str, root: Root = None, source: Root = None, progress: Progress | None = None) -> list[Path]:
    """Make the files of data set `name` be under the root, and return them.

    They come from where they are published, or with `source` from a folder that holds them: packed, unpacked, or
    in a folder of the data set's name. progress(file, done, total) is called as bytes arrive.
    """
    tell = progress or (lambda file, done, total: None)
    paths: list[Path] = []
    for published in getattr(find_data(name), "published", ()):
        place = data_root(root) / published.folder
        for remote in published.files:
            there = _present(remote, place)
            if not there or not {p.relative_to(place).as_posix() for p in there} <= read_sums(place).keys():
                there = _bring(remote, place, source, tell)
            paths += there
    return paths


def _bring(remote: Remote, place: Path, source: Root, tell: Progress) -> list[Path]:
    """Get a file that is not there, unless another process just did, and note its checksum."""
    there: list[Path] = []
    try:
        with FileLock(place.with_name(f".{place.name}.lock")):
            there = _present(remote, place)
            if not there:
                place.mkdir(parents=True, exist_ok=True)
                there = _download(remote, place, tell) if source is None else _take(remote, place, Path(source), tell)
            note_sums(place, there)
    except PermissionError:
        if not (there := there or _present(remote, place)):
            raise  # a good file in a folder of somebody else's needs no note
    return there


def digest(stream: IO[bytes] | gzip.GzipFile, kind: str) -> str:
    """kind "md5" or "sha256" -> "md5:..." of all the stream holds."""
    h = hashlib.new(kind, usedforsecurity=False)
    while chunk := stream.read(_CHUNK):
        h.update(chunk)
    return f"{kind}:{h.hexdigest()}"


def _file_digest(path: Path, checksum: str) -> str:
    with path.open("rb") as stream:
        return digest(stream, checksum.partition(":")[0])


def _content_digest(path: Path, checksum: str) -> str:
    """The same of what a gzip file unpacks to, or of the file when it is not one."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    if not packed:
        return _file_digest(path, checksum)
    try:
        with gzip.open(path) as stream:
            return digest(stream, checksum.partition(":")[0])
    except (EOFError, OSError, zlib.error) as error:
        return f"a gzip file that does not unpack ({error})"


def _fault(path: Path, remote: Remote) -> str:
    """What is wrong with a copy of the published file, or ""."""
    found = _file_digest(path, remote.checksum)
    if found == remote.checksum:
        return ""
    if remote.content and _content_digest(path, remote.content) == remote.content:
        return ""
    if path.stat().st_size != remote.size:
        return f"expected {remote.size:,} bytes, found {path.stat().st_size:,}"
    return f"expected {remote.checksum}, found {found}"


def _member_fault(path: Path, member: Member) -> str:
    """What is wrong with a copy of an unpacked file, or ""."""
    size = path.stat().st_size
    if member.size and size != member.size:
        return f"expected {member.size:,} bytes, found {size:,}"
    if member.checksum and (found := _file_digest(path, member.checksum)) != member.checksum:
        return f"expected {member.checksum}, found {found}"
    return ""


def _present(remote: Remote, place: Path) -> list[Path]:
    """The good files that are in place already; [] unless all are."""
    if remote.members:
        paths = [place / m.file for m in remote.members]
        good = all(p.is_file() and not _member_fault(p, m) for p, m in zip(paths, remote.members, strict=True))
        return paths if good and not any(_changed(p, place) for p in paths) else []
    for path in (place / remote.file, place / remote.file.removesuffix(".gz")):
        if path.is_file() and not _fault(path, remote):
            return [path]
    return []


def _changed(path: Path, place: Path) -> bool:
    """Whether an archive's member, most of which have no published checksum, is not what it was when unpacked."""
    noted = read_sums(place).get(path.relative_to(place).as_posix())
    return noted is not None and _file_digest(path, "sha256:") != f"sha256:{noted}"


def _download(remote: Remote, place: Path, tell: Progress) -> list[Path]:
    part = place / f"{remote.file}.part"
    failures = []
    for url in remote.urls:
        try:
            _get(url, part, remote, tell)
            break
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
    else:
        raise ConnectionError(
            f"{remote.file}: {'; '.join(failures)}; run it again to go on, or use --from DIR where you have the file"
        )
    if fault := _fault(part, remote):
        part.unlink()
        raise ValueError(f"{remote.file} from {url}: {fault}; thrown away, get it elsewhere and use --from DIR")
    return _install(remote, part, place, moved=True)


def _get(url: str, part: Path, remote: Remote, tell: Progress) -> None:
    """Bring `part` to its full size, going on from what it holds."""
    have = part.stat().st_size if part.exists() else 0
    if have == remote.size:
        return
    if have > remote.size:
        part.unlink()
        have = 0
    headers = {"User-Agent": "flashcaps"} | ({"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        if length is not None and have + int(length) != remote.size:
            raise ConnectionError(f"expected {remote.size:,} bytes, the server offers {have + int(length):,}")
        with part.open("ab" if resumed else "wb") as out:
            while have <= remote.size and (chunk := answer.read(_CHUNK)):
                out.write(chunk)
                have += len(chunk)
                tell(remote.file, have, remote.size)
    if have != remote.size:
        raise ConnectionError(f"expected {remote.size:,} bytes, the transfer stopped after {have:,}")


def _take(remote: Remote, place: Path, source: Path, tell: Progress) -> list[Path]:
    """From a folder: the published file, its unpacked form, or an archive's files one by one."""
    folders = [source / sub for sub in (".", place.name, *_OTHER_FOLDERS.get(place.name, ()))]
    names = [remote.file] + ([remote.file.removesuffix(".gz")] if remote.content else [])
    found = next((f / n for n in names for f in folders if (f / n).is_file()), None)
    if found is not None:
        if fault := _fault(found, remote):
            raise ValueError(f"{found}: {fault}; the file is damaged or of another kind")
        tell(remote.file, remote.size, remote.size)
        return _install(remote, found, place, moved=False)
    copies = {}
    for member in remote.members:
        at = next((f / member.file for f in folders if (f / member.file).is_file()), None)
        if at is None:
            break
        if fault := _member_fault(at, member):
            raise ValueError(f"{at}: {fault}; the file is damaged or of another kind")
        copies[at] = place / member.file
    if not copies or len(copies) < len(remote.members):
        unpacked = f" (or {', '.join(m.file for m in remote.members)})" if remote.members else ""
        raise FileNotFoundError(f"no {remote.file}{unpacked} in {source} or {source / place.name}")
    for at, target in copies.items():
        _copy(at, target)
        tell(target.name, target.stat().st_size, target.stat().st_size)
    return list(copies.values())


def _install(remote: Remote, file: Path, place: Path, *, moved: bool) -> list[Path]:
    """Put a checked file, or what an archive holds, into place."""
    if not remote.members:
        target = place / (remote.file if moved else file.name)
        if moved:
            os.replace(file, target)
        else:
            _copy(file, target)
        return [target]
    parts = {m: place / f"{m.file}.part" for m in remote.members}
    unpack(file, {m.path: part for m, part in parts.items()}, LIMIT)
    faults = [f"{m.path} in {file}: {fault}" for m, part in parts.items() if (fault := _member_fault(part, m))]
    if faults:
        for part in parts.values():
            part.unlink()
        raise ValueError(faults[0])
    for member, part in parts.items():
        os.replace(part, place / member.file)
    if moved:
        file.unlink()  # the archive has served
    return [place / m.file for m in remote.members]


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(file):
        return
    part = target.with_name(f"{target.name}.part")
    shutil.copyfile(file, part)
    os.replace(part, target)
