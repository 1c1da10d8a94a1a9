"""flashcaps models, recipes."""

import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from textwrap import fill
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..models import list_models, model_summary
from ..routing.checks import nearest
from ..training.recipe import list_recipes, read_recipe
from .common import AsJson, Imports, console, model_names, recipe_names, say

SCREEN = 55  # rows of a table that one screen shows


def _matching(pattern: str, names: list[str], kind: str) -> list[str]:
    found = [n for n in names if fnmatchcase(n, pattern if any(c in pattern for c in "*?[") else f"*{pattern}*")]
    if not found:
        close = nearest(pattern, names)
        raise ValueError(f"pattern: no {kind} matches {pattern!r}{close}; flashcaps {kind}s lists all")
    return found


def _families(names: Sequence[str], kind: str) -> None:
    """Every name whole, by the word it begins with."""
    for _, family in groupby(names, lambda name: name.partition("_")[0]):
        say(fill("  ".join(family), 79, subsequent_indent="  ", break_long_words=False))
    say(f"\nflashcaps {kind}s em*     those that match, with what they are\n"
        f"flashcaps {kind}s NAME    all of one; --json: all of them, for programs")


def _show(columns: Sequence[str], rows: Iterable[Sequence[str]], one_line: bool) -> None:
    """Names are never wrapped or cut. one_line: nothing is wrapped, and the last column is cut where a line ends."""
    table = Table(box=None, pad_edge=False)
    for k, column in enumerate(columns):
        whole = k == 0 or (one_line and k < len(columns) - 1)
        table.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=whole)
    for *row, about in rows:
        table.add_row(*row, Text(about, no_wrap=one_line, overflow="ellipsis" if one_line else "fold"))
    console.print(table)


Models = Annotated[str, typer.Argument(help="part of a name, or a pattern: capsnet*", autocompletion=model_names)]
Recipes = Annotated[str, typer.Argument(help="part of a name, or a pattern: *mnist*", autocompletion=recipe_names)]


def models(pattern: Models = "", as_json: AsJson = False, imports: Imports = None) -> None:
    """List models with their parameters and papers.

    \b
    flashcaps models
    flashcaps models capsnet
    """
    names = _matching(pattern, list_models(), "model")
    if as_json:
        for name in names:
            typer.echo(json.dumps(model_summary(name)._asdict()))
        return
    if not pattern and len(names) > SCREEN:
        _families(names, "model")
        return
    found = map(model_summary, names)
    rows = [(model.name, f"{model.parameters:,}", model.paper, model.about) for model in found]
    _show(("model", "parameters", "paper", ""), rows, one_line=not pattern)


def recipes(pattern: Recipes = "", as_json: AsJson = False) -> None:
    """List recipes; those that match a pattern with the paper's claims; for an exact name, print the recipe as TOML.

    \b
    flashcaps recipes
    flashcaps recipes em*
    flashcaps recipes capsnet_mnist
    flashcaps recipes --json
    """
    if as_json:
        for name in [pattern] if pattern in list_recipes() else _matching(pattern, list_recipes(), "recipe"):
            typer.echo(json.dumps(read_recipe(name).to_dict()))
        return
    if pattern in list_recipes():
        typer.echo(read_recipe(pattern).to_toml(), nl=False)
        return
    names = _matching(pattern, list_recipes(), "recipe")
    if not pattern and len(names) > SCREEN:
        _families(names, "recipe")
        return
    found = {name: read_recipe(name) for name in names}
    rows = [(name, recipe.claim.paper, str(recipe.claim), recipe.about) for name, recipe in found.items()]
    _show(("recipe", "paper", "claim", ""), rows, one_line=not pattern)
