"""What a trained model says of texts.

    model = flashcaps.load("runs/reviews-0")
    for found in predict_texts(model, ["a quiet, moving film"]):
        print(found.answer, found.top)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ..data.listing import TEXT_COLUMNS, read_rows
from ..training.text import Transformer, load_transformer
from .predict import Prediction, read_scores


def reads_text(model: Any) -> bool:
    """Whether a model takes hidden states of text, not images."""
    return getattr(model, "image", ...) is None


def find_texts(words: Iterable[str], stdin: Any = None) -> list[str]:
    """The texts of .csv and .tsv files (column text), of other files and of "-" (stdin) the lines."""
    found: list[str] = []
    for word in words:
        path = Path(word).expanduser()
        if word == "-":
            found += _lines((stdin or sys.stdin.buffer).read(), "stdin")
        elif path.suffix.lower() in (".csv", ".tsv"):
            _, rows, columns = read_rows(path, "files", "text")
            column = next((c for c in columns if c.lower() in TEXT_COLUMNS), columns[0])
            found += [row[column].strip() for row in rows if row[column].strip()]
        elif path.is_file():
            found += _lines(path.read_bytes(), word)
        else:
            raise FileNotFoundError(f"{word}: no such file; this model reads text: a .txt with a text a line, a .csv "
                                    "with a column text, - for stdin, or --text 'a text'")  # fmt: skip
    if not found:
        raise ValueError("files: expected texts, got none; give a .txt, a .csv, - for stdin, or --text 'a text'")
    return found


def _lines(content: bytes, where: str) -> list[str]:
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not text in UTF-8 ({error}); this model reads text, a line each") from None
    return [line.strip() for line in lines if line.strip()]


def open_transformer(model: Any, name: str | None = None, device: torch.device | str = "cpu") -> Transformer:
    """The transformer a model was trained on, as its file names it, or `name`; one of another size is an error."""
    known = getattr(model, "config", {}).get("recipe", {}).get("data", {}).get("transformer", "")
    transformer = load_transformer(name or known, device)
    layers, width = model.reads
    if (transformer.layers, transformer.width) != (layers, width):
        raise ValueError(f"transformer: expected {layers} layers, embeddings included, of width {width}, got "
                         f"{transformer.layers} of {transformer.width}; give the one it was trained on")  # fmt: skip
    return transformer


@torch.no_grad()
def predict_texts(
    model: Any, texts: Sequence[str], *, transformer: Transformer | str | None = None, top: int = 3, batch: int = 64
) -> list[Prediction]:
    """One Prediction per text, in order, `batch` at a time. transformer: the model's own by default."""
    if not reads_text(model):
        raise ValueError(f"{model.name}: expected a model of text; this one reads images: predict")
    if not isinstance(transformer, Transformer):
        transformer = open_transformer(model, transformer, next(model.parameters()).device)
    training, found = model.training, []
    model.eval()
    try:
        for some in _batches(texts, batch):
            ids, mask = transformer.encode(some, _tokens(model))
            output = model(transformer.states(ids, mask), mask=mask.float())
            found += read_scores(model, output, some, top)[0]
    finally:
        model.train(training)
    return found


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(texts)
    while some := list(islice(rest, size)):
        yield some


def _tokens(model: Any) -> int:
    return getattr(model, "config", {}).get("recipe", {}).get("data", {}).get("tokens", 64)
