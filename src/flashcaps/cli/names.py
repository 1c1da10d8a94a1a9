"""Arguments that several commands take, and what the shell completes them with."""

from __future__ import annotations

from typing import Annotated

import typer

from ..routing.checks import check_choice
from .complete import algorithm_names, figure_names, recipe_names, run_names

RunName = Annotated[
    str, typer.Argument(help="a run folder, a weights file, or a shipped name", autocompletion=run_names)
]
RecipeName = Annotated[
    str | None,
    typer.Argument(help="a name `flashcaps recipes` lists, or a .toml file", autocompletion=recipe_names),
]
Algorithm = Annotated[
    str | None, typer.Option(help="for your data: the algorithm", autocompletion=algorithm_names)
]
Figures = Annotated[
    list[str] | None, typer.Argument(help="which figures (default: all)", autocompletion=figure_names)
]
KINDS = ("ema", "last", "best")


def _check_weights(value: str | None) -> str | None:
    if value is not None:
        check_choice("--weights", value, KINDS)
    return value


Weights = Annotated[
    str | None,
    typer.Option(help="last, best or ema (default: those the run tested)", callback=_check_weights,
                 autocompletion=lambda: list(KINDS)),
]  # fmt: skip
