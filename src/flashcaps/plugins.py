"""Algorithms, models, data sets and figures of other packages. A package declares them in its pyproject.toml:

    [project.entry-points."flashcaps.routing"]      # or flashcaps.models, flashcaps.data, flashcaps.figures
    median = "my_package.median:Median"
"""

import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

T = TypeVar("T")


class Registry(dict[str, T]):
    """This package's own names, followed by those of the entry points of `group`.

    Entry points are loaded when a name is not one of its own, or when all names are asked for. One that cannot be
    loaded is left out with a warning.
    """

    def __init__(self, group: str, own: Mapping[str, T]) -> None:
        super().__init__(own)
        self.group, self.loaded = group, False

    def load(self) -> None:
        if self.loaded:
            return
        self.loaded = True  # set first, because a package that is being loaded may ask for names, too
        for entry in entry_points(group=self.group):
            where = f"{entry.dist.name if entry.dist else entry.value}: {self.group} {entry.name!r}"
            try:
                value = entry.load()
            except Exception as error:
                why = str(error).partition("\n")[0]
                warnings.warn(f"{where} is left out ({type(error).__name__}: {why})", stacklevel=4)
                continue
            if self.setdefault(entry.name, value) is not value:
                warnings.warn(f"{where} is left out: there is one of this name already", stacklevel=4)

    def __missing__(self, name: str) -> T:
        if self.loaded:
            raise KeyError(name)
        self.load()
        return self[name]

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self.load()
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self.load()
        return super().__iter__()

    def __len__(self) -> int:
        self.load()
        return super().__len__()

    # those of dict would not load the entry points
    keys, values, items, get = Mapping.keys, Mapping.values, Mapping.items, Mapping.get  # type: ignore[assignment]
