"""What a data set declares of its published files: addresses, sizes and checksums.

What arrives is checked, wherever it comes from. A checksum was computed from a copy of the file, or is the one that its
authors or other libraries publish; the file of each data set says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Load = TypeVar("Load", bound=Callable[..., Any])


@dataclass(frozen=True)
class Member:
    """A file in an archive, and where it goes under the data set's folder; size 0 and checksum "" are not known."""

    path: str
    file: str
    size: int = 0
    checksum: str = ""


@dataclass(frozen=True)
class Remote:
    """A published file: "md5:..." or "sha256:..." of its bytes, and (`content`) of what it unpacks to.

    A gzip file that unpacks to `content` is right however it was packed.
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
