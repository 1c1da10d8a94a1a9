"""flashcaps models, recipes, data, results, checks."""

from __future__ import annotations

import platform
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..models import list_models, model_summary
from ..recipe import list_recipes, read_recipe
from ._console import DATA_ROOT, console


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern if any(c in pattern for c in "*?[") else f"*{pattern}*")


def models(pattern: Annotated[str, typer.Argument(help="part of a name, or a pattern: capsnet*")] = "*") -> None:
    """Models, their number of parameters and where they are from.

    \b
    flashcaps models
    flashcaps models capsnet
    """
    names = [n for n in list_models() if _matches(n, pattern)]
    if not names:
        raise ValueError(f"pattern: no model matches {pattern!r}; flashcaps models lists all")
    table = Table("model", "parameters", "paper", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for name in names:
        summary = model_summary(name)
        table.add_row(name, f"{summary.parameters:,}", summary.paper, summary.about)
    console.print(table)


def recipes(
    pattern: Annotated[str, typer.Argument(help="part of a name, or a pattern: *mnist*")] = "*",
    measured: Annotated[Path, typer.Option("--results", help="folder of measured results")] = Path("results"),
) -> None:
    """Recipes, what the paper claims, and the best result measured with each.

    \b
    flashcaps recipes
    flashcaps recipes attention
    """
    from ..results import best_results

    names = [n for n in list_recipes() if _matches(n, pattern)]
    if not names:
        raise ValueError(f"pattern: no recipe matches {pattern!r}; flashcaps recipes lists all")
    best = best_results(measured)
    table = Table("recipe", "paper", "claim", "measured", "", box=None, pad_edge=False)
    for name in names:
        recipe = read_recipe(name)
        table.add_row(name, recipe.claim.paper, str(recipe.claim), best.get(name, ""), recipe.about)
    console.print(table)


def data(
    name: Annotated[str, typer.Argument(help="mnist, fashion_mnist, cifar10, svhn, smallnorb, affnist, sst5, ...")],
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
    with Progress(*columns, console=console, transient=True) as progress:
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


def results(
    runs: Annotated[list[Path] | None, typer.Argument(help="finished run folders to add first")] = None,
    folder: Annotated[Path, typer.Option("--results", help="folder of measured results")] = Path("results"),
) -> None:
    """Make results/README.md from the files under results/runs.

    \b
    flashcaps results
    flashcaps results runs/capsnet_mnist-0 runs/capsnet_mnist-1
    """
    from ..results import add_result, write_table

    for run in runs or []:
        console.print(str(add_result(run, folder)), markup=False, soft_wrap=True)
    console.print(str(write_table(folder)), markup=False, soft_wrap=True)


def checks(device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N")] = "auto") -> None:
    """Whether everything works here: versions, devices, and every algorithm's fast form against its reference.

    \b
    flashcaps checks
    flashcaps checks --device cuda
    """
    from ..checks import compare_backends
    from ..workers import find_device

    chosen = find_device(device)
    console.print(f"Python {platform.python_version()}, torch {torch.__version__}, {chosen}", markup=False)
    table = Table("algorithm", "backend", "output", "gradient", "", box=None, pad_edge=False)
    found = compare_backends(chosen)
    for row in found:
        verdict = "ok" if row.ok else "DIFFERS"
        table.add_row(row.algorithm, row.backend, f"{row.output:.1e}", f"{row.gradient:.1e}", verdict)
    console.print(table)
    if not all(row.ok for row in found):
        raise RuntimeError("a fast form differs from its reference here; use backend='reference', and report it")
