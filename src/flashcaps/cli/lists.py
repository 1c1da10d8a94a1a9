"""flashcaps models, recipes."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.table import Table

from ..models import list_models, model_summary
from ..routing.checks import nearest
from ..training.recipe import list_recipes, read_recipe
from .complete import model_names, recipe_names
from .console import console
from .names import Imports


def _matching(pattern: str, names: list[str], kind: str) -> list[str]:
    found = [n for n in names if fnmatchcase(n, pattern if any(c in pattern for c in "*?[") else f"*{pattern}*")]
    if not found:
        close = nearest(pattern, names)
        raise ValueError(f"pattern: no {kind} matches {pattern!r}{close}; flashcaps {kind}s lists all")
    return found


Models = Annotated[str, typer.Argument(help="part of a name, or a pattern: capsnet*", autocompletion=model_names)]
Recipes = Annotated[str, typer.Argument(help="part of a name, or a pattern: *mnist*", autocompletion=recipe_names)]


def models(pattern: Models = "*", imports: Imports = None) -> None:
    """List models with their parameters and papers.

    \b
    flashcaps models
    flashcaps models capsnet
    """
    table = Table("model", "parameters", "paper", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for name in _matching(pattern, list_models(), "model"):
        summary = model_summary(name)
        table.add_row(name, f"{summary.parameters:,}", summary.paper, summary.about)
    console.print(table)


def recipes(pattern: Recipes = "*") -> None:
    """List recipes with the paper's claims; for an exact name, print the whole recipe as TOML.

    \b
    flashcaps recipes
    flashcaps recipes attention
    flashcaps recipes capsnet_mnist
    """
    if pattern in list_recipes():
        typer.echo(read_recipe(pattern).to_toml(), nl=False)
        return
    table = Table("recipe", "paper", "claim", "", box=None, pad_edge=False)
    for name in _matching(pattern, list_recipes(), "recipe"):
        recipe = read_recipe(name)
        table.add_row(name, recipe.claim.paper, str(recipe.claim), recipe.about)
    console.print(table)
