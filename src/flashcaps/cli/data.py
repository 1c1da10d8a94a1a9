"""flashcaps data: get a published data set."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from .common import DATA_ROOT, console, data_names, say

DataName = Annotated[str, typer.Argument(help="mnist, fashion_mnist, cifar10, svhn, ...", autocompletion=data_names)]


def data(
    name: DataName,
    source: Annotated[Path | None, typer.Option("--from", help="read the files from a folder")] = None,
    root: Annotated[str | None, typer.Option("--data", help=f"where to put them ({DATA_ROOT})")] = None,
) -> None:
    """Get a data set from where it is published, or from a folder; every file is checked.

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
        say(path)
    if name not in ("synthetic_norb", "synthetic-norb"):  # rendered when a run first asks for it
        say(describe(load_data(name, root)))
