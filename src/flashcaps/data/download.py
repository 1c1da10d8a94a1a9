"""Gets data sets from where they are published, or from a folder, and checks every file.

A file is written as NAME.part, checked, renamed, and its checksum noted in SHA256SUMS. A download that stopped is
resumed, a wrong one is deleted, and a good file already in place is left alone. Where several processes want the same
file, one gets it and the others wait.
"""

import gzip
import hashlib
import http.client
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from . import find_data
from .files import Member, Remote, Root, data_root, note_sums, read_sums, sha256

Progress = Callable[[str, int, int], None]  # file, bytes done, bytes in all
_CHUNK = 1 << 20
_TIMEOUT_S = 30


def fetch(name: str, root: Root = None, source: Root = None, progress: Progress | None = None) -> list[Path]:
    """Puts the files of data set `name` under the root, and returns them.

    They come from where they are published, or with `source` from a folder that holds them as they are published, or
    has such a folder of the data set's name. progress(file, done, total) is called as bytes arrive.
    """
    report = progress or (lambda file, done, total: None)
    paths: list[Path] = []
    for published in getattr(find_data(name), "published", ()):
        folder = data_root(root) / published.folder
        for remote in published.files:
            present = _present(remote, folder)
            if not present or not {p.relative_to(folder).as_posix() for p in present} <= read_sums(folder).keys():
                present = _bring(remote, folder, source, report)
            paths += present
    return paths


def _bring(remote: Remote, folder: Path, source: Root, report: Progress) -> list[Path]:
    """Gets a file that is missing, unless another process just did, and notes its checksum."""
    present: list[Path] = []
    try:
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            present = _present(remote, folder)
            if not present:
                folder.mkdir(parents=True, exist_ok=True)
                present = _take(remote, folder, source, report)
            note_sums(folder, present)
    except PermissionError:
        if not (present := present or _present(remote, folder)):
            raise  # but good files in a read-only folder need no note
    return present


def _digest(path: Path, checksum: str, *, unpacked: bool = False) -> str:
    """A file's checksum, "md5:..." or "sha256:..." as `checksum` is; unpacked: that of a gzip file's content."""
    kind = checksum.partition(":")[0]
    with path.open("rb") as stream:
        packed = unpacked and stream.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as stream:
            return f"{kind}:{hashlib.file_digest(stream, kind).hexdigest()}"
    except (EOFError, OSError, zlib.error) as error:
        return f"a gzip file that does not unpack ({error})"


def _fault(path: Path, file: Remote | Member) -> str:
    """What is wrong with a copy of a published file or of an archive's member, or ""."""
    found = _digest(path, file.checksum) if file.checksum else ""
    if found and found == file.checksum:
        return ""
    if file.content and _digest(path, file.content, unpacked=True) == file.content:
        return ""
    size = path.stat().st_size
    if file.size and size != file.size:
        return f"expected {file.size:,} bytes, found {size:,}"
    return f"expected {file.checksum}, found {found}" if file.checksum else ""


def _present(remote: Remote, folder: Path) -> list[Path]:
    """The good files that are in place already; [] unless all are."""
    if remote.members:
        noted = read_sums(folder)  # most members have no published checksum
        paths = {member: folder / member.file for member in remote.members}
        good = all(path.is_file() and not _fault(path, member) and noted.get(member.file, "") in ("", sha256(path))
                   for member, path in paths.items())
        return list(paths.values()) if good else []
    candidates = (folder / remote.file, folder / remote.file.removesuffix(".gz"))
    return next(([path] for path in candidates if path.is_file() and not _fault(path, remote)), [])


def _take(remote: Remote, folder: Path, source: Root, report: Progress) -> list[Path]:
    """Downloads or copies a file, checks it, and puts it, or what it holds, into place."""
    part = folder / f"{remote.file}.part"
    origin = _download(remote, part, report) if source is None else _copy(remote, part, Path(source), folder.name)
    if fault := _fault(part, remote):
        part.unlink()
        raise ValueError(f"{remote.file} from {origin}: {fault}; not taken, get it elsewhere and use --from DIR")
    if remote.members:
        paths = _unpack(remote, part, folder)
        part.unlink()
        return paths
    return [part.replace(folder / remote.file)]


def _copy(remote: Remote, part: Path, source: Path, name: str) -> str:
    for path in (source / remote.file, source / name / remote.file):
        if path.is_file():
            shutil.copyfile(path, part)
            return str(path)
    raise FileNotFoundError(f"no {remote.file} in {source} or {source / name}; unpacked files go to {part.parent}")


def _download(remote: Remote, part: Path, report: Progress) -> str:
    failures = []
    for url in remote.urls:
        try:
            _get(url, part, remote, report)
            return url
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
    raise ConnectionError(f"{remote.file}: {'; '.join(failures)}; run it again to resume, or use --from DIR where you "
                          "have the file")


def _get(url: str, part: Path, remote: Remote, report: Progress) -> None:
    """Completes `part`, from the bytes it already has."""
    have = part.stat().st_size if part.exists() else 0
    if have == remote.size:
        return
    if have > remote.size:
        have = 0  # of another file, which is written over
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
                report(remote.file, have, remote.size)
    if have != remote.size:
        raise ConnectionError(f"expected {remote.size:,} bytes, the transfer stopped after {have:,}")


def _unpack(remote: Remote, archive: Path, folder: Path) -> list[Path]:
    """Puts what an archive holds into place, once all of it is checked.

    The archive is the published one, byte for byte; its members are written to names of ours.
    """
    parts = {m: folder / f"{m.file}.part" for m in remote.members}
    with zipfile.ZipFile(archive) if zipfile.is_zipfile(archive) else tarfile.open(archive) as packed:
        open_member = packed.extractfile if isinstance(packed, tarfile.TarFile) else packed.open
        for member, part in parts.items():
            part.parent.mkdir(parents=True, exist_ok=True)
            source = open_member(member.path)
            assert source is not None  # None is for folders
            with source, part.open("wb") as out:
                shutil.copyfileobj(source, out)
    faults = [f"{m.path} in {archive}: {fault}" for m, part in parts.items() if (fault := _fault(part, m))]
    if faults:
        for part in parts.values():
            part.unlink()
        raise ValueError(faults[0])
    return [part.replace(folder / member.file) for member, part in parts.items()]
