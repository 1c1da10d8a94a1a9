from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .common import DataRoot, Device, Figures, Imports, RunOrNone, console, say, show_table


def figures(
    checkpoint: RunOrNone = None,
    names: Figures = None,
    out: Annotated[Path | None, typer.Option(help="folder to write to (default: CHECKPOINT/figures)")] = None,
    against: Annotated[str | None, typer.Option(help="another checkpoint, shown side by side")] = None,
    beside: Annotated[list[str] | None, typer.Option(help="run folders, or a folder of them, to compare with")] = None,
    results: Annotated[Path, typer.Option(help="folder of stored results")] = Path("results"),
    data: DataRoot = None,
    device: Device = "cpu",
    imports: Imports = None,
) -> None:
    """Draw figures of a trained model as PNG and SVG, light and dark, with a report. Without a model, list the figures.

    \b
    flashcaps figures
    flashcaps figures runs/tiny-0
    flashcaps figures runs/tiny-0 perturbations parse_tree
    flashcaps figures runs/tiny-0 --against runs/tiny-1 --out both
    flashcaps figures runs/tiny-0 training_loss --beside runs
    """
    from ..analysis import FIGURES, Run, compare, open_run, write_figures
    from ..analysis.report import choose, title_of

    if checkpoint is None:
        show_table(("figure", "what it shows"), [(name, title_of(name)) for name in FIGURES])
        return
    chosen = choose(names or [])
    stem = Path(checkpoint.removesuffix(".xz")).stem
    place = out or (Path(checkpoint) if Path(checkpoint).is_dir() else Path(stem)) / "figures"
    if place.is_file():
        raise ValueError(f"--out: expected a folder, got a file, {place}")
    columns = BarColumn(None), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    skipped: dict[str, str] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("opening", total=len(chosen) * (2 if against else 1))

        def tell(name: str, why: str) -> None:
            progress.update(task, advance=1, description=name)
            if why:
                skipped[name] = why

        def opened(name: str) -> Run:
            return open_run(name, data=data, results=results, beside=beside or (), device=device)

        if against:
            report = compare(opened(checkpoint), opened(against), place, chosen, tell)
        else:
            report = write_figures(opened(checkpoint), place, chosen, tell)
    for name, why in skipped.items():
        say(f"{name}: not drawn: {why}")
    say(report)
