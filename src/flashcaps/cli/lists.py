"""flashcaps models, recipes."""

import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from textwrap import fill
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ..models import list_models, model_summary
from ..routing.checks import nearest
from ..training.recipe import list_recipes, read_recipe
from .common import AsJson, Imports, console, model_names, recipe_names, say

SCREEN = 55  # rows of a table that one screen shows
Listed = tuple[dict[str, Any], tuple[str, ...]]  # what JSON says of a name, and its row of the table
Models = Annotated[str, typer.Argument(help="part of a name, or a pattern: capsnet*", autocompletion=model_names)]
Recipes = Annotated[str, typer.Argument(help="part of a name, or a pattern: *mnist*", autocompletion=recipe_names)]


def _list(
    kind: str, pattern: str, names: list[str], as_json: bool, columns: Sequence[str], find: Callable[[str], Listed]
) -> None:
    """Prints those of `names` that match: as JSON, as rows of `columns`, or only the names if a screen is too small."""
    wanted = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    found = [name for name in names if fnmatchcase(name, wanted)]
    if not found:
        close = nearest(pattern, names)
        raise ValueError(f"pattern: no {kind} matches {pattern!r}{close}; flashcaps {kind}s lists all")
    if as_json:
        for name in found:
            typer.echo(json.dumps(find(name)[0]))
        return
    if not pattern and len(found) > SCREEN:
        for _, family in groupby(found, lambda name: name.partition("_")[0]):
            say(fill("  ".join(family), 79, subsequent_indent="  ", break_long_words=False))
        say(f"\nflashcaps {kind}s em*     those that match, with what they are\n"
            f"flashcaps {kind}s NAME    all of one; --json: all of them, for programs")
        return
    table = Table(box=None, pad_edge=False)
    for k, column in enumerate((kind, *columns, "")):  # without a pattern, one line each: the last column is cut
        whole = k == 0 or (not pattern and k <= len(columns))
        table.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=whole)
    for name in found:
        *row, about = find(name)[1]
        table.add_row(name, *row, Text(about, no_wrap=not pattern, overflow="fold" if pattern else "ellipsis"))
    console.print(table)


def models(pattern: Models = "", as_json: AsJson = False, imports: Imports = None) -> None:
    """List models with their parameters and papers.

    \b
    flashcaps models
    flashcaps models capsnet
    """

    def find(name: str) -> Listed:
        model = model_summary(name)
        return model._asdict(), (f"{model.parameters:,}", model.paper, model.about)

    _list("model", pattern, list_models(), as_json, ("parameters", "paper"), find)


def recipes(pattern: Recipes = "", as_json: AsJson = False) -> None:
    """List recipes; those that match a pattern with the paper's claims; for an exact name, print the recipe as TOML.

    \b
    flashcaps recipes
    flashcaps recipes em*
    flashcaps recipes capsnet_mnist
    flashcaps recipes --json
    """

    def find(name: str) -> Listed:
        recipe = read_recipe(name)
        return recipe.to_dict(), (recipe.claim.paper, str(recipe.claim), recipe.about)

    exact = pattern in list_recipes()
    if exact and not as_json:
        typer.echo(read_recipe(pattern).to_toml(), nl=False)
        return
    _list("recipe", pattern, [pattern] if exact else list_recipes(), as_json, ("paper", "claim"), find)
