"""flashcaps models, recipes, data."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..models import list_models, model_summary
from ..routing.checks import nearest
from ..training.recipe import list_recipes, read_recipe
from .complete import data_names, model_names, recipe_names
from .console import DATA_ROOT, console


def _matching(pattern: str, names: list[str], kind: str) -> list[str]:
    found = [n for n in names if fnmatchcase(n, pattern if any(c in pattern for c in "*?[") else f"*{pattern}*")]
    if not found:
        close = nearest(pattern, names)
        raise ValueError(f"pattern: no {kind} matches {pattern!r}{close}; flashcaps {kind}s lists all")
    return found


Models = Annotated[str, typer.Argument(help="part of a name, or a pattern: capsnet*", autocompletion=model_names)]
Recipes = Annotated[str, typer.Argument(help="part of a name, or a pattern: *mnist*", autocompletion=recipe_names)]
DataName = Annotated[str, typer.Argument(help="mnist, fashion_mnist, cifar10, svhn, ...", autocompletion=data_names)]


def models(pattern: Models = "*") -> None:
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


def data(
    name: DataName,
    source: Annotated[Path | None, typer.Option("--from", help="a folder with the files, not the network")] = None,
    root: Annotated[str | None, typer.Option("--data", help=f"where to put them ({DATA_ROOT})")] = None,
) -> None:
    """Get a data set from where it is published, or from a folder; checked before it counts as there.

    \b
    flashcaps data mnist
    flashcaps data cifar10 --from ~/downloads
    """
    from ..data import describe, load_data
    from ..data.download import fetch

    columns = TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, int] = {}

        def tell(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total)
            progress.update(tasks[file], completed=done)  # type: ignore[arg-type]

        paths = fetch(name, root, source, tell)
    for path in paths:
        console.print(str(path), markup=False, soft_wrap=True)
    if name not in ("synthetic_norb", "synthetic-norb"):  # rendered when a run first asks for it
        console.print(describe(load_data(name, root)), markup=False, soft_wrap=True)
