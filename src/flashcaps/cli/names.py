"""Arguments and options that several commands take, with their completion."""

import importlib
import sys
from typing import Annotated

import typer

from ..routing.checks import check_choice
from .complete import algorithm_names, figure_names, recipe_names, run_names
from .console import DATA_ROOT

RUN = "a run folder, a weights file, or a shipped name"
KINDS = ("ema", "last", "best")


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
Algorithm = Annotated[str | None, typer.Option(help="for your data: the algorithm", autocompletion=algorithm_names)]
Figures = Annotated[list[str] | None, typer.Argument(help="which figures (default: all)", autocompletion=figure_names)]
Weights = Annotated[str | None, typer.Option(help="last, best or ema (default: those the run tested)",
                                             callback=_check_weights, autocompletion=lambda: list(KINDS))]  # fmt: skip
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N")]
DataRoot = Annotated[str | None, typer.Option(help=f"folder of data sets ({DATA_ROOT})")]
Imports = Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", is_eager=True, callback=_import,
                                                   help="a module of yours that adds something")]  # fmt: skip
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]
