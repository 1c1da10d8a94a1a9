"""Data, augmentation, pictures to predict, recipes and models' overrides."""

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import flashcaps
from flashcaps.data import DiverseMultiMNIST, MultiMNIST, Split, holdout, to_float
from flashcaps.data import augment as A
from flashcaps.data.user_images import read_picture
from flashcaps.deploy.predict import prepare
from flashcaps.training.recipe import list_recipes, make_recipe, read_recipe

from .draw import Draw
from .judge import Case

WORDS = ("0", "1", "-1", "1e9", "1e400", "nan", "inf", "true", '"a"', "[]", "[1, 2]", "{}", "", "=", "x" * 300, "\x00")


def images(draw: Draw, empty: float = 0.05) -> Tensor:
    shape = (draw.size(4, empty), draw.size(3, empty), draw.size(9, empty), draw.size(9, empty))
    if draw.chance(0.5):
        return draw.strided(torch.randint(256, shape, generator=draw.generator, dtype=torch.uint8))
    return draw.tensor(shape, draw.pick((torch.float32, torch.float64)), "normal").sigmoid()


def augmentation(draw: Draw) -> Case:
    x = images(draw)
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "center_crop": (A.center_crop, {"size": draw.random.randint(1, 12)}),
        "resize": (A.resize, {"size": draw.random.randint(1, 12)}),
        "to_float": (to_float, {}),
    }
    function, arguments = calls[draw.pick(sorted(calls))]
    return Case(function, {"images": x} | arguments)


def splits(draw: Draw) -> Case:
    """Examples, some of them held out."""
    n = draw.random.randint(0, 20)
    arguments: dict[str, Any] = {
        "images": torch.zeros(n, 1, 2, 2, dtype=torch.uint8),
        "labels": torch.randint(3, (n,), generator=draw.generator),
        "count": draw.random.randint(-1, 22),
    }

    def run(images: Any, labels: Any, count: Any) -> Any:
        return holdout(Split(images, labels), count=count)

    return Case(run, arguments, names=("holdout",), check=lambda r: "" if len(r[0]) + len(r[1]) == n else "lost some")


def pairs(kind: type[MultiMNIST]) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        n = draw.random.randint(0, 12)
        arguments: dict[str, Any] = {
            "images": torch.randint(256, (n, 1, 5, 5), generator=draw.generator, dtype=torch.uint8),
            "labels": torch.randint(4, (n,), generator=draw.generator),
            "index": torch.randint(10**12, (draw.size(4),), generator=draw.generator),
            "seed": draw.random.getrandbits(40),
            "shift": draw.random.randint(0, 3),
        }

        def run(images: Any, labels: Any, index: Any, seed: Any, shift: Any) -> Any:
            return kind(Split(images, labels), shift=shift, classes=4).at(index, seed)

        return Case(run, arguments, names=("digits", "classes"), check=two_classes)

    return make


def two_classes(batch: Any) -> str:
    total = batch.targets.sum(1)
    return "" if not len(total) or (total.min() >= 1 and total.max() <= 2) else f"{total.tolist()} classes an image"


@cache
def model() -> Any:
    torch.manual_seed(0)
    return flashcaps.create_model("capsnet_mnist", decoder=False, classes=3).eval()


def picture_bytes(draw: Draw) -> bytes:
    """A .png, .jpg or .bmp, whole, cut, flipped in places, or no picture at all."""
    from PIL import Image

    if draw.chance(0.2):
        return draw.random.randbytes(draw.random.randint(0, 200))
    mode = draw.pick(("L", "RGB", "RGBA", "1", "P", "I", "F", "CMYK", "LA"))
    picture, file = Image.new(mode, (draw.random.randint(1, 30), draw.random.randint(1, 30))), io.BytesIO()
    try:
        picture.save(file, draw.pick(("PNG", "JPEG", "BMP", "TIFF", "GIF", "PPM")))
    except (OSError, ValueError):  # not every format knows every mode
        picture.convert("RGB").save(file, "PNG")
    content = bytearray(file.getvalue())
    if draw.chance(0.3):
        del content[draw.random.randrange(len(content)) :]
    for _ in range(draw.random.randint(0, 20) if draw.chance(0.4) and content else 0):
        content[draw.random.randrange(len(content))] = draw.random.randrange(256)
    return bytes(content)


def picture(draw: Draw) -> Case:
    source = picture_bytes(draw) if draw.chance(0.6) else array(draw)
    arguments: dict[str, Any] = {"picture": source, "invert": draw.chance(0.5)}
    return Case(lambda picture, invert: prepare(picture, model(), invert=invert), arguments,
                names=("stdin", "array", "images"), spoil=0,
                check=lambda x: "" if x.shape == (1, 28, 28) and 0 <= x.min() <= x.max() <= 1 else f"{x.shape}")


def array(draw: Draw) -> np.ndarray:
    """(H, W), (C, H, W), (H, W, C) or something else, of any dtype."""
    shape = [draw.size(20, 0.1) for _ in range(draw.random.randint(0, 4))]
    if len(shape) == 3 and draw.chance(0.7):
        shape[draw.pick((0, 2))] = draw.pick((1, 3, 4))
    rng = np.random.default_rng(draw.random.getrandbits(30))
    kind = draw.pick(("u1", "f4", "f8", "i8", "?", "c8", "f2"))
    x = rng.random(shape) * draw.pick((1, 1, 300, -1))
    return np.asarray(x).astype(kind)


def any_picture(draw: Draw) -> Case:
    source = picture_bytes(draw) if draw.chance(0.5) else array(draw)
    arguments = {"source": source, "channels": draw.pick((0, 1, 3, 4, 2, -1))}
    return Case(read_picture, arguments, names=("stdin", "array"), spoil=0)


def override(draw: Draw) -> str:
    sections = ("train", "model", "data", "augment", "loss", "optimiser", "schedule", "claim", "trian", "")
    fields = ("epochs", "batch", "lr", "kind", "name", "crop", "betas", "milestones", "options.rate", "seed", "a.b", "")
    key = draw.pick(fields)
    section = draw.pick(sections)
    return f"{section}.{key}={draw.pick(WORDS)}" if draw.chance(0.7) else f"{key}={draw.pick(WORDS)}"


def recipe(draw: Draw) -> Case:
    overrides = [override(draw) for _ in range(draw.random.randint(0, 3))]
    arguments: dict[str, Any] = {"name": draw.pick(list_recipes()), "overrides": overrides}
    if draw.chance(0.1):
        arguments["name"] = draw.pick(("", "no", "../etc/passwd", "capsnet_mnist.toml"))
    return Case(lambda **a: plain(read_recipe(**a)), arguments, names=known_words(overrides), spoil=0)


def known_words(texts: list[str]) -> tuple[str, ...]:
    """What a message may name: any word of the overrides, or a section."""
    words = [w for text in texts for w in text.partition("=")[0].split(".") if w]
    return (*words, "recipe", "section", "expected")


def plain(made: Any) -> str:
    """A recipe survives being written and read again."""
    again = make_recipe(made.to_dict())
    return "" if again == made else "differs when it is read again"


def tree(draw: Draw) -> Case:
    """A recipe as nested dicts, with something wrong somewhere."""
    content = read_recipe(draw.pick(list_recipes())).to_dict()
    for _ in range(draw.random.randint(1, 2)):
        section = draw.pick(sorted(content))
        wrong = draw.pick((None, -1, 1e400, float("nan"), "x", [], {}, [[1]], {"a": {"b": 1}}, 10**30))
        if isinstance(content[section], dict) and content[section] and draw.chance(0.8):
            content[section][draw.pick([*sorted(content[section]), "nonsense"])] = wrong
        else:
            content[section] = wrong
    words = tuple(content) + tuple(k for s in content.values() if isinstance(s, dict) for k in s)
    return Case(lambda content: plain(make_recipe(content)), {"content": content}, names=words, spoil=0)


def overrides_of_models(draw: Draw) -> Case:
    """A model with any override changed."""
    arguments: dict[str, Any] = {"name": draw.pick(("capsnet_mnist", "em_cifar10", "attention_simple_cifar10"))}
    if draw.chance(0.6):
        arguments["classes"] = draw.pick((2, 3, 20, 100, 0, -1, 2.5, "3"))
    if draw.chance(0.6):
        sound = ((1, 28, 28), (3, 32, 32), (2, 36, 40), (1, 48, 48))
        arguments["image"] = draw.pick((*sound, *sound, (1, 2, 2), (0, 28, 28), (28, 28), "image", None))
    if draw.chance(0.3):
        changed = draw.pick(("routing", "backbone", "decoder", "iterations", "nonsense"))
        arguments[changed] = draw.pick(("em", 3, None, "x"))

    def run(**options: Any) -> Any:
        with torch.device("meta"):
            return flashcaps.create_model(**options)

    return Case(run, arguments, names=("model", "backbone", "padding", "features"), spoil=0)


TARGETS: dict[str, Callable[[Draw], Case]] = {
    "data: augment": augmentation,
    "data: holdout": splits,
    "data: MultiMNIST": pairs(MultiMNIST),
    "data: DiverseMultiMNIST": pairs(DiverseMultiMNIST),
    "predict: prepare": picture,
    "predict: read_picture": any_picture,
    "recipe: read_recipe": recipe,
    "recipe: make_recipe": tree,
    "create_model": overrides_of_models,
}
