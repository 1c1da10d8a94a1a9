"""Predictions of a trained model for pictures and texts.

    model = flashcaps.load("runs/tiny-0")
    for found in predict(model, find_pictures(["digits/*.png"])):
        print(found.file, found.answer, found.top)

    for found in predict_texts(flashcaps.load("runs/reviews-0"), ["a quiet, moving film"]):
        print(found.answer, found.top)
"""

import glob
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import to_float
from ..data.augment import center_crop
from ..data.cifar import CIFAR10, CIFAR100
from ..data.mnist import CLOTHES
from ..data.norb import CLASSES as TOYS
from ..data.user_images import SUFFIXES, TEXT_COLUMNS, fit, pictures_in, read_features, read_picture, read_rows, scaled
from ..routing.checks import check_sizes
from ..routing.math import length
from ..training.evaluate import answers, evaluating, score_threshold
from ..training.text import Transformer

DIGITS = tuple("0123456789")
NAMES = {"cifar10": CIFAR10, "cifar100": CIFAR100, "fashion_mnist": CLOTHES, "smallnorb": TOYS, "synthetic_norb": TOYS}
# Side of the data sets' images, of which a recipe may crop the centre.
SIDES = {"mnist": 28, "fashion_mnist": 28, "digits": 28, "affnist": 40, "affnist_style": 40, "translated_mnist": 40,
         "cifar10": 32, "cifar100": 32, "svhn": 32, "smallnorb": 96, "synthetic_norb": 96}  # fmt: skip


class Score(NamedTuple):
    """score: what the loss takes, a length, activation or logit; length: of the class capsule, None without one."""

    name: str
    score: float
    length: float | None

    def __str__(self) -> str:
        plain = self.length is None or abs(self.length - self.score) < 5e-4
        return f"{self.name} {self.score:.3f}" + ("" if plain else f" (length {self.length:.3f})")


@dataclass(frozen=True)
class Prediction:
    """answer: the best class, both of a two-digit model, or all above the threshold. top: the highest scores.

    file: the name of the picture, or the text itself.
    """

    file: str
    answer: tuple[str, ...]
    top: tuple[Score, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"top": [score._asdict() for score in self.top]}


class Picture(NamedTuple):
    """A name to print, and what `read_picture` reads."""

    name: str
    source: Any


class PredictedBatch(NamedTuple):
    """A batch as the model got it (B, C, H, W), its predictions, and the routed class capsules."""

    images: Tensor
    predictions: list[Prediction]
    chosen: Tensor  # (B,) or (B, M): the answer as class indices
    routed: Any


def find_pictures(words: Iterable[str], stdin: Any = None) -> list[Picture]:
    """Files, folders (recursively), patterns, and "-": a picture on stdin, or names of pictures, one per line."""
    found: list[Picture] = []
    for word in [words] if isinstance(words, str) else words:
        path = Path(word).expanduser()
        if not word:
            raise ValueError("files: expected a file, folder or pattern, got an empty name; . is this folder")
        if word == "-":
            found += _from_stdin((stdin or sys.stdin.buffer).read())
        elif path.is_dir():
            inside = [Picture(str(f), f) for f in pictures_in(path)]
            if not inside:
                raise ValueError(f"{word}: no pictures in this folder; they end in {', '.join(SUFFIXES)}")
            found += inside
        elif path.is_file():
            found.append(Picture(word, path))
        else:
            matches = [f for f in sorted(glob.glob(str(path), recursive=True)) if Path(f).is_file()]
            if not matches:
                raise FileNotFoundError(f"{word}: no such file, folder or pattern")
            found += [Picture(f, Path(f)) for f in matches]
    if not found:
        raise ValueError("files: expected pictures, got none; give files, a folder, a pattern, or - for stdin")
    return found


def _from_stdin(content: bytes) -> list[Picture]:
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError:  # a picture, not a list of names
        return [Picture("stdin", content)]
    return find_pictures([line.strip() for line in lines if line.strip()])


def find_texts(words: Iterable[str], stdin: Any = None) -> list[str]:
    """The column "text" of .csv and .tsv files, the lines of other files, and of stdin for "-"."""
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
            raise FileNotFoundError(f"{word}: no such file; this model reads text: a .txt with a text per line, a .csv "
                                    "with a column text, - for stdin, or --text 'a text'")  # fmt: skip
    if not found:
        raise ValueError("files: expected texts, got none; give a .txt, a .csv, - for stdin, or --text 'a text'")
    return found


def _lines(content: bytes, where: str) -> list[str]:
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not text in UTF-8 ({error}); this model reads text, one per line") from None
    return [line.strip() for line in lines if line.strip()]


def reads_text(model: Any) -> bool:
    """Whether a model takes hidden states of text, not images."""
    return getattr(model, "image", ...) is None


def recipe_of(model: Any) -> dict[str, Any]:
    """The recipe in a model's file; {} if it names none."""
    return getattr(model, "config", {}).get("recipe", {})


def prepare(picture: Any, model: Any, *, invert: bool = False) -> Tensor:
    """A picture with the channels, size and centre crop of the training data: float (C, H, W)."""
    if getattr(model, "image", None) is None:
        raise ValueError(f"{getattr(model, 'name', 'model')}: expected a model of images; this one reads text: "
                         "predict_texts")
    channels, height, width = model.image
    data, crop = recipe_of(model).get("data", {}), recipe_of(model).get("augment", {}).get("crop", 0)
    side = data.get("resize") or data.get("options", {}).get("size") or SIDES.get(data.get("name", ""), 0)
    h, w = (side, side) if isinstance(side, int) else side  # before the crop; 0 if they are not known
    pixels = read_picture(picture, channels)
    if h and crop == height == width:
        pixels = center_crop(fit(pixels, (channels, h, w))[None], crop)[0]
    pixels = fit(pixels, (channels, height, width))
    return to_float(255 - pixels if invert else pixels)


def class_names(model: Any) -> tuple[str, ...]:
    """The names in the model's file or of its data set; digits, or numbers, otherwise."""
    data = recipe_of(model).get("data", {})
    own = getattr(model, "config", {}).get("class_names") or data.get("options", {}).get("class_names")
    names = own or NAMES.get(data.get("name", ""), DIGITS)
    return tuple(names) if len(names) == model.classes else tuple(str(k) for k in range(model.classes))


def answer_rule(model: Any) -> tuple[str, float]:
    """How scores become an answer, as in evaluation: ("top1" | "top2" | "threshold", threshold)."""
    data, loss = recipe_of(model).get("data", {}), recipe_of(model).get("loss", {}).get("kind", "margin")
    several = data.get("name") == "diverse_multimnist" or data.get("options", {}).get("multilabel", False)
    rule = "threshold" if several else "top2" if data.get("name") == "multimnist" else "top1"
    return rule, score_threshold(loss)


def read_scores(model: Any, output: Any, files: Sequence[str], top: int) -> tuple[list[Prediction], Tensor]:
    """A Prediction per example, and the classes of each from the best score to the worst, (B, K)."""
    scores, names = output.scores.float().cpu(), class_names(model)
    lengths = None if output.routed is None else length(output.routed.pose.float()).cpu()
    given = answers(scores, *answer_rule(model))
    order = scores.argsort(1, descending=True)
    predictions = []
    for k, file in enumerate(files):
        best = [Score(names[j], float(scores[k, j]), None if lengths is None else float(lengths[k, j]))
                for j in order[k, : max(top, 1)].tolist()]  # fmt: skip
        chosen = tuple(names[j] for j in order[k].tolist() if given[k, j])
        predictions.append(Prediction(file, chosen, tuple(best)))
    return predictions, order


def _batches(items: Iterable[Any], batch: int) -> Iterator[list[Any]]:
    check_sizes(batch=batch)
    rest = iter(items)
    while some := list(islice(rest, batch)):
        yield some


def predict_batches(
    model: Any, pictures: Iterable[Picture], *, top: int = 3, batch: int = 64, invert: bool = False
) -> Iterator[PredictedBatch]:
    """All pictures, `batch` at a time."""
    device, (rule, _) = next(model.parameters()).device, answer_rule(model)
    for some in _batches(pictures, batch):
        images = torch.stack([prepare(p.source, model, invert=invert) for p in some]).to(device)
        with evaluating(model):
            output = model(images)
        predictions, order = read_scores(model, output, [p.name for p in some], top)
        drawn = order[:, 0] if rule == "top1" else order[:, :2]
        yield PredictedBatch(images, predictions, drawn.to(device), output.routed)


def predict(
    model: Any, pictures: Iterable[Picture], *, top: int = 3, batch: int = 64, invert: bool = False
) -> list[Prediction]:
    """One Prediction per picture, in order."""
    found = predict_batches(model, pictures, top=top, batch=batch, invert=invert)
    return [prediction for some in found for prediction in some.predictions]


def predict_numbers(model: Any, tables: Iterable[str], *, top: int = 3, batch: int = 64) -> list[Prediction]:
    """One Prediction per row of .csv files with the columns that the model was trained on; others are not read."""
    known, device, found = recipe_of(model)["data"]["options"], next(model.parameters()).device, []
    if not (tables := list(tables)):
        raise ValueError(f"files: expected a .csv with columns {', '.join(known['columns'])}, got none")
    for word in tables:
        table, rows, _ = read_rows(word, "files", ",".join(known["columns"]))
        x = scaled(read_features(table, rows, known["columns"]), known["mean"], known["std"]).to(device)
        for index in torch.arange(len(x)).split(batch):
            with evaluating(model):
                output = model(x[index])
            found += read_scores(model, output, [f"{word}: row {k + 1}" for k in index.tolist()], top)[0]
    return found


def open_transformer(model: Any, name: str | None = None, device: torch.device | str = "cpu") -> Transformer:
    """The transformer that a model was trained on, by the name in its file or `name`; its size must fit."""
    transformer = Transformer(name or recipe_of(model).get("data", {}).get("transformer", ""), device)
    layers, width = model.reads
    if (transformer.layers, transformer.width) != (layers, width):
        raise ValueError(f"transformer: expected {layers} layers, embeddings included, of width {width}, got "
                         f"{transformer.layers} of {transformer.width}; give the one it was trained on")  # fmt: skip
    return transformer


def predict_texts(
    model: Any, texts: Sequence[str], *, transformer: Transformer | str | None = None, top: int = 3, batch: int = 64
) -> list[Prediction]:
    """One Prediction per text, in order, `batch` at a time. transformer: the model's own by default."""
    if not reads_text(model):
        raise ValueError(f"{model.name}: expected a model of text; this one reads images: predict")
    if not isinstance(transformer, Transformer):
        transformer = open_transformer(model, transformer, next(model.parameters()).device)
    tokens, found = recipe_of(model).get("data", {}).get("tokens", 64), []
    for some in _batches(texts, batch):
        with evaluating(model):
            ids, mask = transformer.encode(some, tokens)
            output = model(transformer.states(ids, mask), mask=mask.float())
        found += read_scores(model, output, some, top)[0]
    return found


@torch.no_grad()
def draw(model: Any, found: PredictedBatch, folder: Path) -> list[Path]:
    """A .png for every picture of a batch: the model's input, and beside it what the decoder draws of the answer."""
    if getattr(model, "decoder", None) is None:
        raise ValueError("--reconstruct: this model has no decoder; train one with model.decoder=true")
    from PIL import Image

    drawn = model.reconstruct(found.routed, found.chosen)
    panels = [found.images, *(drawn.unbind(1) if drawn.ndim == 5 else [drawn])]
    wide = torch.cat(panels, 3).clamp(0, 1).mul(255).round().byte().cpu()  # (B, C, H, W * panels)
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for pixels, prediction in zip(wide, found.predictions, strict=True):
        path = folder / f"{unique(Path(prediction.file).stem, [p.stem for p in folder.glob('*.png')])}.png"
        if len(pixels) not in (1, 3, 4):  # the first channel of a stereo pair
            pixels = pixels[:1]
        array = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
        Image.fromarray(array.contiguous().numpy()).save(path)
        paths.append(path)
    return paths


def unique(name: str, taken: Iterable[str]) -> str:
    """The name, or NAME-2, NAME-3, ... where it is taken: pictures and runs of different folders may share one."""
    count, wanted = 2, name
    while name in taken:
        name, count = f"{wanted}-{count}", count + 1
    return name
