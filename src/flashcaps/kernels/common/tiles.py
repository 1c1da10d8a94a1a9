"""Tiles other than the rule's, where a search found them faster (`flashcaps.training.tune`).

Rules choose from shapes alone (`_attend_plan`, `_fit_source`). What the file named by FLASHCAPS_TILES has for a kernel
and a shape goes before them; without it nothing is looked up.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

VARIABLE = "FLASHCAPS_TILES"
T = TypeVar("T", bound=tuple[Any, ...])  # a named tuple of numbers


class Asked(NamedTuple):
    """What a kernel is cut by, by rule, and what else it could be."""

    rule: tuple[Any, ...]
    others: list[tuple[Any, ...]]


class Tiles:
    """Found tiles by kernel and shape, and while a search looks on (`watching`), what is asked for."""

    def __init__(self) -> None:
        self.found: dict[str, list[Any]] | None = None  # None: the file has not been read
        self.asked: dict[str, Asked] | None = None

    def pick(self, kernel: str, shape: Iterable[Any], rule: T, others: Callable[[T], list[T]]) -> T:
        """The tile of this kernel for this shape: what was found, else the rule's."""
        if self.found is None:
            self.found = read(os.environ.get(VARIABLE))
        if not self.found and self.asked is None:
            return rule
        name = f"{kernel} {' '.join(map(str, shape))}"
        if self.asked is not None:
            self.asked.setdefault(name, Asked(rule, list(others(rule))))
        tile = self.found.get(name, rule)
        if len(tile) != len(rule):
            raise ValueError(f"{VARIABLE}: {name} has {len(tile)} numbers, expected {len(rule)}; make the file anew")
        return type(rule)(*tile)

    @contextmanager
    def watching(self, found: dict[str, list[Any]]) -> Iterator[dict[str, Asked]]:
        """With these tiles, which may change meanwhile; gives what is asked for."""
        before = self.found, self.asked
        self.found, self.asked = found, {}
        try:
            yield self.asked
        finally:
            self.found, self.asked = before


IN_USE = Tiles()
pick = IN_USE.pick


def read(path: str | os.PathLike[str] | None) -> dict[str, list[Any]]:
    """The tiles of a file that was made on a device like this one; none without a file."""
    if not path:
        return {}
    try:
        given = json.loads(Path(path).read_text())
        made_on, tiles = given["hardware"], dict(given["tiles"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{VARIABLE}: {path} is not a file that flashcaps tune made ({error})") from None
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if here and made_on != here:
        raise ValueError(f"{VARIABLE}: {path} was made on {made_on}, this is {here}; flashcaps tune makes one for it")
    return tiles


def with_tiles(command: str) -> str:
    """A command as it is typed again: with the file of tiles, if one is in use."""
    path = os.environ.get(VARIABLE)
    return f"{VARIABLE}={shlex.quote(path)} {command}" if path else command
