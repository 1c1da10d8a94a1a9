"""What a trained model says of pictures.

    model = flashcaps.load("runs/tiny-0")
    for found in predict(model, find_pictures(["digits/*.png"])):
        print(found.file, found.answer, found.top)
"""

from __future__ import annotations

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
from ..data.listing import SUFFIXES, pictures_in
from ..data.user_images import fit, read_picture
from ..routing.math import length
from ..training.evaluate import answers, score_threshold

DIGITS = tuple("0123456789")
CROPPED = {"cifar10": 32, "cifar100": 32, "svhn": 32}  # side of the images that recipes crop without a resize


class Score(NamedTuple):
    """score: what the loss takes, a length, activation or logit; length: of the class capsule, None without one."""

    name: str
    score: float
    length: float | None


@dataclass(frozen=True)
class Prediction:
    """answer: the best class, both of a two-digit model, or all above the threshold. top: the highest scores.

    file: the picture's name, or the text itself.
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


class Look(NamedTuple):
    """A batch as the model saw it (B, C, H, W), what it said, and the routed class capsules."""

    images: Tensor
    predictions: list[Prediction]
    chosen: Tensor  # (B,) or (B, M): the answer as class indices
    routed: Any


def find_pictures(words: Iterable[str], stdin: Any = None) -> list[Picture]:
    """Files, folders (searched through), patterns, and "-": a picture on stdin, or the names of some, one a line."""
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
    except UnicodeDecodeError:  # no list of names: a picture itself
        return [Picture("stdin", content)]
    return find_pictures([line.strip() for line in lines if line.strip()])


def prepare(picture: Any, model: Any, *, invert: bool = False) -> Tensor:
    """A picture as the model's data were made: channels, size, the centre where training took crops. (C, H, W) float"""
    if getattr(model, "image", None) is None:
        raise ValueError(f"{getattr(model, 'name', 'model')}: expected a model of images; this one reads text: "
                         "predict_texts")
    channels, height, width = model.image
    recipe = getattr(model, "config", {}).get("recipe", {})
    data, crop = recipe.get("data", {}), recipe.get("augment", {}).get("crop", 0)
    side = data.get("resize") or CROPPED.get(data.get("name", ""), 0)
    pixels = read_picture(picture, channels)
    if crop and side > crop == height == width:
        pixels = center_crop(fit(pixels, (channels, side, side))[None], crop)[0]
    pixels = fit(pixels, (channels, height, width))
    return to_float(255 - pixels if invert else pixels)


def class_names(model: Any) -> tuple[str, ...]:
    """Those the model was trained with, where its file says them; digits, or numbers, otherwise."""
    config: dict[str, Any] = getattr(model, "config", {})
    data = config.get("recipe", {}).get("data", {})
    names = config.get("class_names") or data.get("options", {}).get("class_names") or known_names(data.get("name", ""))
    return tuple(names) if len(names) == model.classes else tuple(str(k) for k in range(model.classes))


def known_names(data: str) -> tuple[str, ...]:
    from ..data.cifar import CIFAR10, CIFAR100
    from ..data.fashion_mnist import CLASSES
    from ..data.norb import CLASSES as TOYS

    names = {"cifar10": CIFAR10, "cifar100": CIFAR100, "fashion_mnist": CLASSES, "smallnorb": TOYS,
             "synthetic_norb": TOYS}  # fmt: skip
    return tuple(names.get(data, DIGITS))


def answer_rule(model: Any) -> tuple[str, float]:
    """How scores become an answer, as in evaluation: ("top1" | "top2" | "threshold", threshold)."""
    recipe = getattr(model, "config", {}).get("recipe", {})
    data, loss = recipe.get("data", {}), recipe.get("loss", {}).get("kind", "margin")
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


@torch.no_grad()
def look(model: Any, pictures: Sequence[Picture], *, top: int = 3, invert: bool = False) -> Look:
    """One batch of pictures through the model."""
    device = next(model.parameters()).device
    images = torch.stack([prepare(p.source, model, invert=invert) for p in pictures]).to(device)
    output = model(images)
    predictions, order = read_scores(model, output, [p.name for p in pictures], top)
    rule, _ = answer_rule(model)
    drawn = order[:, 0] if rule == "top1" else order[:, :2]
    return Look(images, predictions, drawn.to(device), output.routed)


def looks(
    model: Any, pictures: Iterable[Picture], *, top: int = 3, batch: int = 64, invert: bool = False
) -> Iterator[Look]:
    """All pictures, `batch` at a time, in evaluation mode."""
    if batch < 1:
        raise ValueError(f"batch: expected at least 1, got {batch}")
    training, rest = model.training, iter(pictures)
    model.eval()
    try:
        while some := list(islice(rest, batch)):
            yield look(model, some, top=top, invert=invert)
    finally:
        model.train(training)


def predict(
    model: Any, pictures: Iterable[Picture], *, top: int = 3, batch: int = 64, invert: bool = False
) -> list[Prediction]:
    """One Prediction per picture, in order."""
    return [p for found in looks(model, pictures, top=top, batch=batch, invert=invert) for p in found.predictions]


@torch.no_grad()
def draw(model: Any, found: Look, folder: Path) -> list[Path]:
    """A .png for every picture of a batch: what the model saw, and beside it what its decoder draws of the answer."""
    if getattr(model, "decoder", None) is None:
        raise ValueError("--reconstruct: this model has no decoder; train one with model.decoder=true")
    from PIL import Image

    drawn = model.reconstruct(found.routed, found.chosen)
    panels = [found.images, *(drawn.unbind(1) if drawn.ndim == 5 else [drawn])]
    wide = torch.cat(panels, 3).clamp(0, 1).mul(255).round().byte().cpu()  # (B, C, H, W * panels)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for pixels, prediction in zip(wide, found.predictions, strict=True):
        path = _free(folder, Path(prediction.file).stem)
        if len(pixels) not in (1, 3, 4):  # stereo pairs and the like: their first channel
            pixels = pixels[:1]
        array = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
        Image.fromarray(array.contiguous().numpy()).save(path)
        paths.append(path)
    return paths


def _free(folder: Path, stem: str) -> Path:
    """A name not taken: pictures of different folders may have the same."""
    path, k = folder / f"{stem}.png", 2
    while path.exists():
        path, k = folder / f"{stem}-{k}.png", k + 1
    return path
