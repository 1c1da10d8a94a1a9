"""Recipes for a user's own data: sizes of the model and length of training by rule, with a line on every choice.

    sized = size_model((3, 50, 70), classes=3)
    model = create_model(sized.name, **sized.overrides)
    recipe, why = own_recipe("images", "pets/")
    recipe, why = own_text_recipe("reviews.csv", "path/to/transformer")

Images get a capsule network; texts get heinsen's head over the frozen hidden states of a transformer, which are
computed batch by batch and not stored: a text of 64 tokens in a transformer of 13 layers of 768 takes 2.5 MB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.listing import Listing, assign, list_text
from ..data.user_images import LISTS, Survey, count_classes, survey
from ..models.timm import PREFIX, timm_backbone
from ..nn.backbones import Image, output_shape
from ..routing import ROUTING, Sizes
from ..routing.checks import check_choice
from .recipe import Recipe, make_recipe

LONGEST = 10  # places along the longer side of the primary grid; routing takes time for each
STRIDES = (1, 2, 3, 4)  # of one convolution; images that need more get a residual network
FEATURES = 20  # places along the longer side of a residual network's output
SMALLEST = 6  # pixels along the shorter side of an image
TYPES = (16, 8, 4, 2)  # of primary capsules
WEIGHTS = 1 << 21  # of the transforms between primary and class capsules
PIXELS = 64 * 64 * 3  # the most a decoder draws: its last layer has as many rows
DIM, CLASS_DIM = 8, 16
TOKENS = 64  # of a text, at most
WORD_PIECES = 1.5  # tokens a word, roughly, in the vocabularies of published transformers

# The loss for several classes an example, in place of the one that an algorithm declares.
SEVERAL = {"margin": "margin", "spread": "margin", "cross_entropy": "bce"}


class Length(NamedTuple):
    """How long training on own data should take: about `steps` steps, within these epochs."""

    steps: int
    epochs: tuple[int, int]
    batches: tuple[int, ...]


IMAGES = Length(1200, (10, 60), (128, 64, 32, 16, 8, 4, 2))
TEXTS = Length(800, (3, 40), (32, 16, 8, 4, 2))


class Sized(NamedTuple):
    """A model's name and overrides, the grid of its primary capsules, and a line on every choice."""

    name: str
    overrides: dict[str, Any]
    grid: tuple[int, int]
    why: tuple[str, ...]


def size_model(
    image: Image, classes: int, routing: str = "dynamic", *, multilabel: bool = False, backbone: str = ""
) -> Sized:
    """Backbone, primary grid, capsule counts and decoder for images (C, H, W). backbone: "timm:NAME", or by rule."""
    c, h, w = image
    if min(h, w) < SMALLEST:
        raise ValueError(f"image: expected at least {SMALLEST} x {SMALLEST} pixels, got {h} x {w}; scale it up")
    check_choice("routing", routing, ROUTING)
    name, features, primary, grid, why = _pretrained(image, backbone) if backbone else _by_rule(image)
    places = grid[0] * grid[1]
    types = next((t for t in TYPES if places * t * classes * DIM * CLASS_DIM <= WEIGHTS), TYPES[-1])
    each = places * types
    more = (
        f"primary capsules: a grid of {grid[0]} x {grid[1]} x {types} types = {each:,}, so that their transforms to "
        f"{classes} classes have {each * classes * DIM * CLASS_DIM:,} weights (at most {WEIGHTS:,})",
        f"class capsules: {classes} of {CLASS_DIM}, routed by {routing}",
    )
    pixels = c * h * w
    draws = pixels <= PIXELS and not multilabel
    if draws:
        last = f"decoder: draws {pixels:,} pixels as a regulariser"
    elif multilabel:
        last = "decoder: none, as images have several classes"
    else:
        last = f"decoder: none, {pixels:,} pixels are more than {PIXELS:,}; model.decoder=true adds one"
    overrides: dict[str, Any] = {
        "image": list(image),
        "classes": classes,
        "backbone": features,
        "primary": {"types": types, "dim": DIM, **primary},
        "decoder": [128, 256] if draws else False,
    }
    if routing != "dynamic":
        overrides["routing"] = routing
    return Sized(name, overrides, grid, (why, *more, last))


Features = tuple[str, Any, dict[str, Any], tuple[int, int], str]  # model, backbone, primary, grid, why


def _by_rule(image: Image) -> Features:
    stem = _stem(*image[1:])
    return _one_convolution(image, stem) if stem else _residual(*image[1:])


def _pretrained(image: Image, backbone: str) -> Features:
    """A network of timm; primary capsules at every place of its last feature map, or every second where it is large."""
    if not backbone.startswith(PREFIX):
        raise ValueError(f"backbone: expected {PREFIX}NAME, as timm:resnet18, got {backbone!r}")
    network = timm_backbone(backbone.removeprefix(PREFIX), channels=image[0], pretrained=False)
    channels, height, width = output_shape(network, image)
    kernel, stride = (1, 1) if max(height, width) <= LONGEST or min(height, width) < 3 else (3, 2)
    grid = _places(height, width, kernel, stride)
    why = f"backbone: {backbone}, pretrained, whose last feature map has {channels} channels of {height} x {width}"
    return "capsnet_tiny", backbone, {"kernel": kernel, "stride": stride}, grid, why


class Stem(NamedTuple):
    """Kernel and stride of the first convolution and of the primary capsules, and the grid they leave."""

    kernel: int
    stride: int
    primary_kernel: int
    primary_stride: int
    grid: tuple[int, int]


def _stem(height: int, width: int) -> Stem | None:
    """The smallest stride that leaves at most LONGEST places; None where one convolution is not enough."""
    second = (5, 2) if min(height, width) >= 14 else (3, 1)
    for stride in STRIDES:
        kernel = 2 * stride + 1  # neighbours overlap by half
        grid = _places(*_places(height, width, kernel, stride), *second)
        if max(grid) <= LONGEST and min(grid) >= 1:
            return Stem(kernel, stride, *second, grid)
    return None


def _places(height: int, width: int, kernel: int, stride: int) -> tuple[int, int]:
    return (height - kernel) // stride + 1, (width - kernel) // stride + 1


def _one_convolution(image: Image, stem: Stem) -> Features:
    kernel, stride, primary_kernel, primary_stride, grid = stem
    channels = 32 if image[0] == 1 else 64
    why = (f"backbone: one convolution, {channels} channels, kernel {kernel}, stride {stride}: the smallest stride "
           f"that leaves at most {LONGEST} places along the longer side")  # fmt: skip
    primary = {"kernel": primary_kernel, "stride": primary_stride}
    return "capsnet_tiny", {"channels": channels, "kernel": kernel, "stride": stride}, primary, grid, why


def _residual(height: int, width: int) -> Features:
    halvings = math.ceil(math.log2(max(height, width) / FEATURES))
    stages = [[min(16 << k, 128), 1, 2] for k in range(halvings)]
    for _ in range(halvings):
        height, width = (height + 1) // 2, (width + 1) // 2
    kernel = min(3, height, width)
    grid = tuple((n + 2 - kernel) // 2 + 1 for n in (height, width))
    why = (f"backbone: a residual network that halves {halvings} times, to {height} x {width}: one convolution would "
           f"need a stride above {STRIDES[-1]}")  # fmt: skip
    primary = {"kernel": kernel, "stride": 2, "padding": 1}
    return "dynamic_resnet_cifar10", {"stages": stages}, primary, (grid[0], grid[1]), why


def own_recipe(
    kind: str,
    path: str,
    overrides: Iterable[str] = (),
    *,
    routing: str = "dynamic",
    size: Sequence[int] = (),
    backbone: str = "",
) -> tuple[Recipe, tuple[str, ...]]:
    """(recipe, a line on every choice) for a user's pictures, of which a sample is read.

    kind: "images" (a folder), "table" (a .csv) or "hub" (a name). size: (H, W) they are resized to. backbone:
    "timm:NAME", or by default one that is chosen by rule.
    """
    check_choice("kind", kind, LISTS)
    check_choice("routing", routing, ROUTING)
    listing = LISTS[kind](path)
    found = survey(listing, size)
    classes = len(listing.class_names)
    sized = size_model(found.image, classes, routing, multilabel=listing.multilabel, backbone=backbone)
    where = path if kind == "hub" else str(Path(path).expanduser().resolve())
    options = {"path": where, "size": list(found.image[1:]), "channels": found.image[0],
               "class_names": list(listing.class_names), "examples": len(listing.files)}  # fmt: skip
    if listing.multilabel:
        options["multilabel"] = True
    content = {
        "name": _name(path) or kind,
        "about": f"{len(listing.files):,} pictures of {len(listing.class_names)} classes",
        "model": {"name": sized.name, "overrides": sized.overrides},
        "data": {"name": kind, "options": options},
        **_training(found, routing, listing.multilabel, sized.overrides["decoder"]),
    }
    recipe = make_recipe(content, overrides)
    if recipe.data.options["size"] != options["size"]:
        raise ValueError(f"data.size: expected {options['size']}, which the model is made for, got "
                         f"{recipe.data.options['size']}; --size HEIGHT WIDTH changes both")  # fmt: skip
    return recipe, (_about(found, listing.multilabel), *sized.why, _plan(recipe))


def own_command(recipe: Recipe) -> list[str]:
    """What follows `flashcaps train` to make this recipe again: its name, or the pictures or texts it was made for."""
    options, routing = recipe.data.options, recipe.model.overrides.get("routing")
    backbone = recipe.model.overrides.get("backbone")
    chosen = (["--routing", routing] if routing else []) + (["--backbone", backbone] if _is_timm(backbone) else [])
    if recipe.data.name == "text":
        return ["--text", options["path"], "--transformer", recipe.data.transformer, *chosen]
    if recipe.data.name not in LISTS:
        return [recipe.name]
    flag = {"images": "--images", "table": "--table", "hub": "--dataset"}[recipe.data.name]
    return [flag, options["path"], "--size", *map(str, options["size"]), *chosen]


def _is_timm(backbone: Any) -> bool:
    return isinstance(backbone, str) and backbone.startswith(PREFIX)


def own_text_recipe(
    path: str, transformer: str, overrides: Iterable[str] = (), *, routing: str = "heinsen"
) -> tuple[Recipe, tuple[str, ...]]:
    """(recipe, a line on every choice) for a table of texts. transformer: a folder, or a name found on this machine."""
    check_choice("routing", routing, [name for name in ROUTING if _takes_any_number(name)])
    if not transformer:
        raise ValueError("--transformer: expected a folder or name of a transformer, got none; --text needs one, whose "
                         "hidden states are routed")  # fmt: skip
    listing = list_text(path)
    classes, several = len(listing.class_names), listing.multilabel
    folder = Path(transformer).expanduser()
    parts = assign(listing, 0)
    train = parts.count("train")
    batch, epochs = _length(train, TEXTS)
    model: dict[str, Any] = {"classes": classes} | ({} if routing == "heinsen" else {"routing": routing})
    options = {"path": str(Path(path).expanduser().resolve()), "class_names": list(listing.class_names),
               "examples": len(listing.files)}  # fmt: skip
    content = {
        "name": _name(path) or "text",
        "about": f"{len(listing.files):,} texts of {classes} classes",
        "model": {"name": "heinsen_sst2", "overrides": model},
        "data": {"name": "text", "transformer": str(folder.resolve()) if folder.is_dir() else transformer,
                 "tokens": TOKENS, "options": options | ({"multilabel": True} if several else {})},
        "loss": {"kind": _loss(routing, several)},
        "optimiser": {"kind": "adamw", "lr": 0.002, "weight_decay": 0.01},
        "schedule": {"kind": "cosine", "warmup": 0.1},
        "train": {"epochs": epochs, "batch": batch, "precision": "fp32", "capture": False, "log_every": 10,
                  "clip": 1.0, "select": "validation" if "validation" in parts else "last"},
    }  # fmt: skip
    recipe = make_recipe(content, overrides)
    return recipe, _text_choices(listing, train, recipe, routing)


def _takes_any_number(name: str) -> bool:
    """Whether an algorithm can route any number of children, as texts of different lengths have."""
    try:
        ROUTING[name]().learned(Sizes(children=None, parents=2, dim=2))
    except ValueError:
        return False
    return True


def _name(path: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in Path(path).stem)


def _loss(routing: str, several: bool) -> str:
    return SEVERAL[ROUTING[routing].loss] if several else ROUTING[routing].loss


def _length(train: int, length: Length) -> tuple[int, int]:
    """(batch, epochs): at least eight steps an epoch where there are enough examples."""
    batch = next((b for b in length.batches if train >= 8 * b), max(1, min(2, train)))
    least, most = length.epochs
    return batch, min(max(length.steps * batch // max(train, 1), least), most)


def _training(found: Survey, routing: str, multilabel: bool, decoder: Any) -> dict[str, Any]:
    batch, epochs = _length(found.train, IMAGES)
    weight = round(4 / math.prod(found.image), 6) if decoder else 0.0
    return {
        "augment": {"shift": 1 if min(found.image[1:]) < 40 else 2},
        "loss": {"kind": _loss(routing, multilabel), "reconstruction": weight},
        "optimiser": {"kind": "adamw", "lr": 0.002, "weight_decay": 0.01},
        "schedule": {"kind": "cosine", "warmup": 0.1},
        "train": {"epochs": epochs, "batch": batch, "ema": 0.98, "precision": "fp32", "log_every": 10},
    }


def _about(found: Survey, multilabel: bool) -> str:
    c, h, w = found.image
    least, most = min(found.counts.values()), max(found.counts.values())
    several = ", several at once" if multilabel else ""
    return (f"data: {found.train:,} pictures to train on, brought to {c} x {h} x {w}; {len(found.counts)} classes"
            f"{several} of {least:,} to {most:,} pictures")  # fmt: skip


def _plan(recipe: Recipe) -> str:
    length = f"{recipe.train.epochs} epochs, batch {recipe.train.batch}"
    return f"training: {length}, {recipe.loss.kind} loss; key=value changes any of these"


def _text_choices(listing: Listing, train: int, recipe: Recipe, routing: str) -> tuple[str, ...]:
    counts = count_classes(listing).values()
    several = ", several at once" if listing.multilabel else ""
    cut = sum(len(text.split()) * WORD_PIECES > recipe.data.tokens for text in listing.files)
    tokens = f"tokens: the first {recipe.data.tokens} of each text"
    tokens += f"; about {cut:,} texts are longer, data.tokens={2 * recipe.data.tokens} reads more" if cut else ""
    return (
        f"data: {train:,} texts to train on; {len(counts)} classes{several} of {min(counts):,} to {max(counts):,}",
        f"transformer: {recipe.data.transformer}, its weights frozen; every layer's hidden state of every token "
        "becomes a capsule, computed batch by batch",
        tokens,
        f"capsules: 64 of 2, then {len(counts)} classes, routed by {routing}",
        _plan(recipe),
    )
