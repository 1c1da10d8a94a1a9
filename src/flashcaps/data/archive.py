"""Unpacks named members of archives; an archive with a member that leads outside itself is refused."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from .files import LIMIT

MEMBERS = 100_000
HEADER = 1 << 20  # bytes of a long name or of further attributes, which tarfile reads whole


class _Member(tarfile.TarInfo):
    """A member whose header fits in memory: one of gigabytes packs into a few kilobytes."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if not (self.isreg() or self.isdir()) and self.size > HEADER:
            raise tarfile.HeaderError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def _check(archive: Path, count: int, name: str, plain: bool, size: int, limit: int) -> None:
    path = PurePosixPath(name)
    if count >= MEMBERS:
        raise ValueError(f"{archive}: expected at most {MEMBERS:,} members, found more; refused")
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise ValueError(f"{archive}: member {name!r} points outside the archive; refused")
    if not plain:
        raise ValueError(f"{archive}: member {name!r} is neither a file nor a folder; refused")
    if size > limit:
        raise ValueError(f"{archive}: expected at most {limit:,} bytes unpacked, found {size:,} or more; refused")


@contextmanager
def _opened(archive: Path, limit: int) -> Iterator[dict[str, Callable[[], IO[bytes] | None]]]:
    """How to open each member, by name, after every member was checked."""
    total = 0
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as z:
            for count, info in enumerate(z.infolist()):
                total += info.file_size
                kind = (info.external_attr >> 16) & 0o170000
                plain = kind in (0, 0o100000, 0o040000)  # not said, file, folder
                _check(archive, count, info.filename, plain, total, limit)
            yield {i.filename: partial(z.open, i) for i in z.infolist() if not i.is_dir()}
    else:
        with tarfile.open(archive, "r:*", tarinfo=_Member) as t:
            members = []
            for count, member in enumerate(t):
                total += member.size
                _check(archive, count, member.name, member.isreg() or member.isdir(), total, limit)
                members.append(member)
            yield {m.name.removeprefix("./"): partial(t.extractfile, m) for m in members if m.isreg()}


def unpack(archive: Path, wanted: Mapping[str, Path], limit: int = LIMIT) -> None:
    """Write each wanted member of a .zip or .tar.* file to its path; on any error, nothing of it is left.

    limit: bytes that all members together may unpack to.
    """
    try:
        with _opened(archive, limit) as members:
            missing = [name for name in wanted if name not in members]
            if missing:
                raise ValueError(f"{archive}: expected a member {missing[0]!r}, found {sorted(members)[:8]}")
            for name, target in wanted.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                source = members[name]()
                assert source is not None  # None is for folders and links alone
                with source, target.open("wb") as out:
                    while chunk := source.read(1 << 20):
                        out.write(chunk)
                        if out.tell() > limit:  # a header may understate what follows
                            raise ValueError(f"{archive}: expected at most {limit:,} bytes, {name} has more; refused")
    except BaseException as error:
        for target in wanted.values():
            target.unlink(missing_ok=True)
        if isinstance(error, (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error)):
            raise ValueError(f"{archive}: expected a whole archive, found one that does not unpack ({error})") from None
        raise
