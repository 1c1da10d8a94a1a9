"""flashcaps predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..checkpoint import load
from ..predict import Prediction, draw, find_pictures, looks
from ..workers import find_device
from ._console import console


def predict(
    checkpoint: Annotated[str, typer.Argument(help="a run folder, a weights file, or a shipped name")],
    files: Annotated[list[str], typer.Argument(help="pictures, folders, patterns; - is stdin: a picture, or names")],
    top: Annotated[int, typer.Option(help="classes to list for each picture")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
    reconstruct: Annotated[Path | None, typer.Option(help="folder for pictures of what the decoder draws")] = None,
    invert: Annotated[bool, typer.Option("--invert", help="for dark on white, as on paper")] = False,
    weights: Annotated[str | None, typer.Option(help="last, best or ema (default: those the run tested)")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N")] = "auto",
) -> None:
    """Classes of pictures: the answer, the top capsules and their lengths; both digits of a two-digit model.

    \b
    flashcaps predict runs/tiny-0 digit.png
    flashcaps predict runs/tiny-0 scans/ --invert --reconstruct drawn/
    find . -name '*.png' | flashcaps predict runs/tiny-0 - --json
    """
    model = load(checkpoint, weights=weights, device=find_device(device))
    found: list[Prediction] = []
    for batch in looks(model, find_pictures(files), top=top, invert=invert):
        paths = [] if reconstruct is None else draw(model, batch, reconstruct)
        for k, prediction in enumerate(batch.predictions):
            if as_json:
                extra = {"reconstruction": str(paths[k])} if paths else {}
                typer.echo(json.dumps(prediction.to_dict() | extra))
        found += batch.predictions
    if not as_json:
        console.print(table(found))
        if reconstruct is not None:
            console.print(f"{len(found)} pictures in {reconstruct}", markup=False)


def table(predictions: list[Prediction]) -> Table:
    """A row a picture: its answer, then the top classes with score and, where it differs, length."""
    shown = Table("file", "answer", "score", box=None, pad_edge=False)
    for found in predictions:
        scores = []
        for name, score, length in found.top:
            plain = length is None or abs(length - score) < 5e-4
            scores.append(f"{name} {score:.3f}" + ("" if plain else f" (length {length:.3f})"))
        shown.add_row(found.file, " ".join(found.answer) or "none", ", ".join(scores))
    return shown
