"""flashcaps train --images, --table, --dataset: a recipe for somebody's own pictures, and what was chosen, printed."""

from __future__ import annotations

from collections.abc import Sequence

from ..recipe import Recipe
from ..sizing import memory_warning, own_recipe
from ..workers import find_device
from ._console import console


def own_fields(
    given: dict[str, str | None], words: Sequence[str], *, routing: str, size: Sequence[int], device: str
) -> Recipe | None:
    """The recipe for the one of --images, --table and --dataset that was given; None for none of them.

    words: all positional ones, which are overrides here.
    """
    kinds = {"--images": "images", "--table": "table", "--dataset": "hub"}
    named = [(flag, path) for flag, path in given.items() if path is not None]
    if not named:
        return None
    if len(named) > 1:
        raise ValueError(f"{' and '.join(flag for flag, _ in named)}: expected one of them")
    wrong = next((word for word in words if "=" not in word), None)
    flag, path = named[0]
    if wrong is not None:
        raise ValueError(f"{wrong}: {flag} makes the recipe itself; expected key=value after it, as epochs=3")
    recipe, why = own_recipe(kinds[flag], path, words, routing=routing, size=size)
    for line in why:
        console.print(line, markup=False, soft_wrap=True)
    warning = memory_warning(recipe, find_device(device))
    if warning is not None:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
    return recipe
