"""What other packages bring to flashcaps. A package declares it in its pyproject.toml, and names it from then on:

    [project.entry-points."flashcaps.routing"]      # or flashcaps.models, flashcaps.data, flashcaps.figures
    median = "my_package.median:Median"
"""

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import entry_points
from typing import TypeVar

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A dict of this package's own names, and after them those of the entry points of `group`.

    They are loaded when a name is not among the own ones, or all names are asked for. One that cannot be loaded is left
    out with a warning.
    """

    def __init__(self, group: str, own: Mapping[str, T]) -> None:
        self.group, self.known, self.loaded = group, dict(own), False

    def load(self) -> dict[str, T]:
        """All names."""
        if not self.loaded:
            self.loaded = True  # first: a package that is being loaded may ask for names, too
            for entry in entry_points(group=self.group):
                where = f"{entry.dist.name if entry.dist else entry.value}: {self.group} {entry.name!r}"
                try:
                    value = entry.load()
                except Exception as error:
                    why = str(error).partition("\n")[0]
                    warnings.warn(f"{where} is left out ({type(error).__name__}: {why})", stacklevel=3)
                    continue
                if self.known.setdefault(entry.name, value) is not value:
                    warnings.warn(f"{where} is left out: there is one of this name already", stacklevel=3)
        return self.known

    def __getitem__(self, name: str) -> T:
        return self.known[name] if name in self.known else self.load()[name]

    def __setitem__(self, name: str, value: T) -> None:
        self.known[name] = value

    def __delitem__(self, name: str) -> None:
        del self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.load())

    def __len__(self) -> int:
        return len(self.load())
