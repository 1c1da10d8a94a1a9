"""flashcaps tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .complete import recipe_names
from .console import console


def tune(
    recipe: Annotated[str, typer.Argument(help="of a network that reads images", autocompletion=recipe_names)],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, as for train")] = None,
    save: Annotated[Path, typer.Option(help="file to add what is found to")] = Path("tiles.json"),
) -> None:
    """Search for faster tiles of the kernels of a training step, on this GPU. Most of its time goes into compiling.

    Kernels choose theirs from shapes. What a search finds is used where FLASHCAPS_TILES names its file, and
    nowhere else.

    \b
    flashcaps tune attention_resnet_cifar10
    flashcaps tune capsnet_mnist batch=256 precision=bf16 --save tiles.json
    FLASHCAPS_TILES=tiles.json flashcaps train capsnet_mnist batch=256 precision=bf16
    """
    from ..training.recipe import read_recipe
    from ..training.tune import tune as search

    search(read_recipe(recipe, overrides or []), save, lambda line: console.print(line, markup=False, soft_wrap=True))
