"""What commands share: the console, and arguments and options with their completion in the shell."""

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..routing.checks import check_choice

DATA_ROOT = "default $FLASHCAPS_DATA or ~/.cache/flashcaps"
RUN = "a run folder, a weights file, or a shipped name"
KINDS = ("ema", "last", "best")
# Wide where there is no terminal, so that tables are not wrapped.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def say(text: object) -> None:
    """Print one line as it is."""
    console.print(str(text), markup=False, soft_wrap=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under the names of their columns, if there are any. right: columns of numbers."""
    table = Table(box=None, pad_edge=False, show_header=bool(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _names_of(module: str, names: Callable[[Any], Iterable[str]]) -> Callable[[], list[str]]:
    """Completes names of a module of flashcaps, which is imported when Tab is pressed."""
    return lambda: list(names(importlib.import_module(f"..{module}", __package__)))


def run_names(incomplete: str) -> list[str]:
    """Run folders and weights files here."""
    folders = [str(path.parent) for path in Path("runs").glob("*/config.json")]
    weights = [str(path) for pattern in ("*.safetensors", "*.safetensors.xz") for path in Path().glob(pattern)]
    return [name for name in sorted(folders) + sorted(weights) if name.startswith(incomplete)]


recipe_names = _names_of("training.recipe", lambda module: module.list_recipes())
model_names = _names_of("models", lambda module: module.list_models())
data_names = _names_of("data", lambda module: sorted(module.DATA))
figure_names = _names_of("analysis", lambda module: module.FIGURES)
algorithm_names = _names_of("routing", lambda module: module.ROUTING)


def _check_weights(value: str | None) -> str | None:
    if value is not None:
        check_choice("--weights", value, KINDS)
    return value


def _import(modules: list[str] | None) -> list[str] | None:
    """Imports modules, also of this folder, which is not on the path of an installed command."""
    for module in modules or ():
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f"--import: {module}: {error}; expected a module that can be imported") from error
    return modules


RunName = Annotated[str, typer.Argument(help=RUN, autocompletion=run_names)]
RunOrNone = Annotated[str | None, typer.Argument(help=RUN, autocompletion=run_names)]
RunNames = Annotated[list[str], typer.Argument(help="run folders, weights files or shipped names",
                                               autocompletion=run_names)]  # fmt: skip
RecipeName = Annotated[str | None, typer.Argument(help="a name `flashcaps recipes` lists, or a .toml file",
                                                  autocompletion=recipe_names)]  # fmt: skip
Algorithm = Annotated[str | None, typer.Option(help="for your data: routing algorithm", autocompletion=algorithm_names)]
Start = Annotated[str | None, typer.Option("--from", help="for your pictures: a run or shipped name to begin with",
                                           autocompletion=run_names)]  # fmt: skip
Figures = Annotated[list[str] | None, typer.Argument(help="which figures (default: all)", autocompletion=figure_names)]
Weights = Annotated[str | None, typer.Option(help="last, best or ema (default: those the run tested)",
                                             callback=_check_weights, autocompletion=lambda: list(KINDS))]  # fmt: skip
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N")]
DataRoot = Annotated[str | None, typer.Option(help=f"folder of data sets ({DATA_ROOT})")]
Imports = Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", is_eager=True, callback=_import,
                                                   help="import your module first, to register its parts")]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]
