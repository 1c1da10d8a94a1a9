"""`flashcaps data NAME` gets a data set; `flashcaps data shard FOLDER OUT` makes shards of your own pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .console import console
from .lists import data as get


class DataGroup(TyperGroup):
    """A group whose first word is one of its commands, or else the name of a data set."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["get", *args]
        return super().parse_args(ctx, args)


data = typer.Typer(cls=DataGroup, add_completion=False, rich_markup_mode="rich", no_args_is_help=True,
                   help="Get a data set (flashcaps data mnist), or make shards of your own pictures.")
data.command(name="get")(get)


@data.command()
def shard(
    source: Annotated[Path, typer.Argument(help="a folder of pictures: a folder per class, or train, val and test")],
    out: Annotated[Path, typer.Argument(help="where to put the shards")],
    samples: Annotated[int, typer.Option(min=1, help="pictures in a shard")] = 1000,
    size: Annotated[int, typer.Option(min=0, help="side pictures are read at; 0: the median of a sample")] = 0,
    seed: Annotated[int, typer.Option(help="of the order, and of what is held out")] = 0,
) -> None:
    """Pictures and labels in .tar shards, to train on data larger than memory.

    \b
    flashcaps data shard pets shards
    flashcaps train capsnet_mnist data.name=shards data.path=shards train.capture=false
    """
    from ..data.listing import assign, list_folder
    from ..data.shards import Source, open_shards, write_shards
    from ..data.user_images import survey

    listing = list_folder(source)
    shape = survey(listing, (size, size) if size else ()).image
    parts = assign(listing, seed)
    pictures = zip(listing.files, listing.labels.tolist(), parts, strict=True)
    index = write_shards((Source(*p) for p in pictures), out, shape, listing.class_names, samples=samples, seed=seed)
    console.print(str(index), markup=False, soft_wrap=True)
    for part in sorted(set(parts), key=("train", "validation", "test").index):
        shards = open_shards(out, part)
        console.print(f"  {part:<10} {len(shards):>9,} pictures in {len(shards.units):,} shards", markup=False)
