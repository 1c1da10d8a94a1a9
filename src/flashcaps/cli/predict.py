import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data.user_images import read_picture
from ..deploy.predict import (
    Picture,
    Prediction,
    draw,
    find_pictures,
    find_texts,
    predict_batches,
    predict_numbers,
    predict_texts,
    reads_text,
    recipe_of,
)
from ..training.checkpoint import load
from ..training.distributed import find_device
from .common import AsJson, Device, Imports, RunName, Weights, say, show_table


def predict(
    checkpoint: RunName,
    files: Annotated[list[str] | None, typer.Argument(help="pictures, folders, patterns; - is stdin")] = None,
    text: Annotated[list[str] | None, typer.Option(help="a text to classify; files of texts are .txt or .csv")] = None,
    transformer: Annotated[str | None, typer.Option(help="for texts: folder or name of the transformer")] = None,
    top: Annotated[int, typer.Option(min=1, help="number of classes per picture")] = 3,
    as_json: AsJson = False,
    reconstruct: Annotated[Path | None, typer.Option(help="folder for reconstructions by the decoder")] = None,
    invert: Annotated[bool, typer.Option("--invert", help="invert pictures of dark ink on white paper")] = False,
    weights: Weights = None,
    device: Device = "auto",
    imports: Imports = None,
) -> None:
    """Predict the classes of pictures or texts, with the top scores and lengths of capsules.

    \b
    flashcaps predict runs/tiny-0 digit.png
    flashcaps predict runs/tiny-0 scans/ --invert --reconstruct drawn/
    find . -name '*.png' | flashcaps predict runs/tiny-0 - --json
    flashcaps predict runs/reviews-0 --text 'a quiet, moving film'
    flashcaps predict runs/iris-0 more.csv
    """
    model: Any = load(checkpoint, weights=weights, device=find_device(device))
    if recipe_of(model).get("data", {}).get("name") == "numbers":
        show_rows(predict_numbers(model, files or [], top=top), as_json, "row")
        return
    if reads_text(model):
        if reconstruct or invert:
            raise ValueError(f"--reconstruct, --invert: are for pictures; {model.name} reads text")
        if any(not words.strip() for words in text or []):
            raise ValueError("--text: expected a text, got an empty one")
        texts = (text or []) + (find_texts(files or []) if files or not text else [])
        show_rows(predict_texts(model, texts, transformer=transformer, top=top), as_json, "text")
        return
    if text or transformer:
        raise ValueError(f"--text: {model.name} reads pictures; give files, a folder, a pattern, or - for stdin")
    if reconstruct is not None and reconstruct.is_file():
        raise ValueError(f"--reconstruct: expected a folder, got a file, {reconstruct}")
    found: list[Prediction] = []
    unread: list[str] = []
    for batch in predict_batches(model, readable(find_pictures(files or []), model, unread), top=top, invert=invert):
        paths = [] if reconstruct is None else draw(model, batch, reconstruct)
        if as_json:
            show_rows(batch.predictions, True, "file", paths)
        found += batch.predictions
    if found and not as_json:
        show_rows(found, False, "file")
        if reconstruct is not None:
            say(f"{len(found)} pictures in {reconstruct}")
    for why in unread:
        typer.echo(f"error: {why}", err=True)
    if unread:
        raise typer.Exit(1)


def readable(pictures: list[Picture], model: Any, unread: list[str]) -> Iterator[Picture]:
    """Pictures as arrays; a damaged one is skipped and its error added to `unread`."""
    for picture in pictures:
        try:
            yield Picture(picture.name, read_picture(picture.source, model.image[0]).numpy())
        except ValueError as error:
            unread.append(" ".join(str(error).split()))


def show_rows(found: list[Prediction], as_json: bool, what: str, drawn: Sequence[Path] = ()) -> None:
    """Prints a table, or JSON with the path of each reconstruction that was drawn."""
    if not as_json:
        show_table((what, "answer", "score"),
                   [(p.file, " ".join(p.answer) or "none", ", ".join(map(str, p.top))) for p in found])
        return
    for k, prediction in enumerate(found):
        rest = prediction.to_dict() | ({"reconstruction": str(drawn[k])} if drawn else {})
        typer.echo(json.dumps({what: rest.pop("file")} | rest))
