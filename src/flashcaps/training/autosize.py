"""Recipes for a user's own data: rules choose the model's sizes and the length of training, and say why.

    sized = size_model((3, 50, 70), classes=3)
    model = create_model(sized.name, **sized.overrides)
    recipe, why = own_recipe("images", "pets/")
    recipe, why = own_text_recipe("reviews.csv", "path/to/transformer")

Images get a capsule network. Texts get heinsen's head over the hidden states of a frozen transformer, which are
computed batch by batch and not stored: those of one text, 64 tokens in 13 layers of 768, take 2.5 MB.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..data.user_images import (
    LISTS,
    Listing,
    assign,
    count_classes,
    feature_columns,
    feature_scale,
    fingerprint,
    holds_numbers,
    list_numbers,
    list_text,
    read_rows,
    same_labels,
    survey,
)
from ..models.specs import Route
from ..models.stored import find_weights, read_weights
from ..models.timm import PREFIX, Timm
from ..nn.backbones import Image, output_shape
from ..routing import ROUTING
from ..routing.checks import check_choice
from .checkpoint import load
from .recipe import Recipe, make_recipe, read_override

LONGEST = 10  # places along the longer side of the primary grid; routing takes time for each
STRIDES = (1, 2, 3, 4)  # of one convolution; images that need more get a residual network
FEATURES = 20  # places along the longer side of a residual network's output
SMALLEST = 6  # pixels along the shorter side of an image
TYPES = (16, 8, 4, 2)  # of primary capsules
WEIGHTS = 1 << 21  # of the transforms between primary and class capsules
PIXELS = 64 * 64 * 3  # the most a decoder draws: its last layer has as many rows
DIM, CLASS_DIM = 8, 16
HIDDEN = 128  # units between a table's numbers and primary capsules
TOKENS = 64  # of a text, at most
WORD_PIECES = 1.5  # tokens a word, roughly, in the vocabularies of published transformers

# The flag of `flashcaps train` for each kind of a user's data.
FLAGS = {"images": "--images", "table": "--table", "numbers": "--table", "hub": "--dataset", "text": "--text"}
# The loss for several classes an example, in place of the one that an algorithm declares.
SEVERAL = {"margin": "margin", "spread": "margin", "cross_entropy": "bce"}


class Length(NamedTuple):
    """How long to train on a user's data: about `steps` steps, but so many epochs at least and at most."""

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
    """Chooses backbone, grid, capsules and decoder for images (C, H, W). backbone: "timm:NAME", or "" by rule."""
    if min(image[1:]) < SMALLEST:
        got = f"{image[1]} x {image[2]}"
        raise ValueError(f"image: expected at least {SMALLEST} x {SMALLEST} pixels, got {got}; scale it up")
    check_choice("routing", routing, ROUTING)
    features = _pretrained(image, backbone) if backbone else _one_convolution(image) or _residual(image)
    grid, each = features.grid, classes * DIM * CLASS_DIM  # weights of a primary capsule
    types = next((t for t in TYPES if math.prod(grid) * t * each <= WEIGHTS), TYPES[-1])
    capsules, pixels = math.prod(grid) * types, math.prod(image)
    draws = pixels <= PIXELS and not multilabel
    if draws:
        decoder = f"decoder: draws {pixels:,} pixels as a regulariser"
    elif multilabel:
        decoder = "decoder: none, as images have several classes"
    else:
        decoder = f"decoder: none, {pixels:,} pixels are more than {PIXELS:,}; model.decoder=true adds one"
    overrides: dict[str, Any] = {
        "image": list(image),
        "classes": classes,
        "backbone": features.overrides["backbone"],
        "primary": {"types": types, "dim": DIM, **features.overrides["primary"]},
        "decoder": [128, 256] if draws else False,
    }
    if routing != "dynamic":
        overrides["routing"] = routing
    why = (
        *features.why,
        f"primary capsules: a grid of {grid[0]} x {grid[1]} x {types} types = {capsules:,}, so that their transforms "
        f"to {classes} classes have {capsules * each:,} weights (at most {WEIGHTS:,})",
        f"class capsules: {classes} of {CLASS_DIM}, routed by {routing}",
        decoder,
    )
    return features._replace(overrides=overrides, why=why)


def _pretrained(image: Image, backbone: str) -> Sized:
    """A network of timm, with primary capsules at every place of its last feature map, or every second."""
    if not backbone.startswith(PREFIX):
        raise ValueError(f"backbone: expected {PREFIX}NAME, as timm:resnet18, got {backbone!r}")
    network = Timm(backbone.removeprefix(PREFIX), pretrained=False).build(image[0])
    channels, height, width = output_shape(network, image)
    kernel, stride = (1, 1) if max(height, width) <= LONGEST or min(height, width) < 3 else (3, 2)
    grid = _places(height, width, kernel, stride)
    why = f"backbone: {backbone}, pretrained, whose last feature map has {channels} channels of {height} x {width}"
    overrides = {"backbone": backbone, "primary": {"kernel": kernel, "stride": stride}}
    return Sized("capsnet_tiny", overrides, grid, (why,))


def _one_convolution(image: Image) -> Sized | None:
    """One convolution, with the smallest stride that leaves at most LONGEST places; None if no stride does."""
    c, height, width = image
    primary_kernel, primary_stride = (5, 2) if min(height, width) >= 14 else (3, 1)
    for stride in STRIDES:
        kernel = 2 * stride + 1  # neighbours overlap by half
        grid = _places(*_places(height, width, kernel, stride), primary_kernel, primary_stride)
        if max(grid) <= LONGEST and min(grid) >= 1:
            break
    else:
        return None
    channels = 32 if c == 1 else 64
    why = (f"backbone: one convolution, {channels} channels, kernel {kernel}, stride {stride}: the smallest stride "
           f"that leaves at most {LONGEST} places along the longer side")  # fmt: skip
    overrides = {
        "backbone": {"channels": channels, "kernel": kernel, "stride": stride},
        "primary": {"kernel": primary_kernel, "stride": primary_stride},
    }
    return Sized("capsnet_tiny", overrides, grid, (why,))


def _residual(image: Image) -> Sized:
    _, height, width = image
    halvings = math.ceil(math.log2(max(height, width) / FEATURES))
    stages = [[min(16 << k, 128), 1, 2] for k in range(halvings)]
    height, width = (math.ceil(side / 2**halvings) for side in (height, width))
    kernel = min(3, height, width)
    grid = _places(height + 2, width + 2, kernel, 2)
    why = (f"backbone: a residual network that halves {halvings} times, to {height} x {width}: one convolution would "
           f"need a stride above {STRIDES[-1]}")  # fmt: skip
    overrides = {"backbone": {"stages": stages}, "primary": {"kernel": kernel, "stride": 2, "padding": 1}}
    return Sized("dynamic_resnet_cifar10", overrides, grid, (why,))


def _places(height: int, width: int, kernel: int, stride: int) -> tuple[int, int]:
    return (height - kernel) // stride + 1, (width - kernel) // stride + 1


def own_recipe(
    kind: str,
    path: str,
    overrides: Iterable[str] = (),
    *,
    routing: str = "dynamic",
    size: Sequence[int] = (),
    backbone: str = "",
    start: str = "",
) -> tuple[Recipe, tuple[str, ...]]:
    """(recipe, a line on every choice) for a user's pictures, or a table of numbers. A sample of the pictures is read.

    kind: "images" (a folder), "table" (a .csv) or "hub" (a name). size: (H, W) to resize pictures to. backbone:
    "timm:NAME", or "" by rule. start: a run, weights file or shipped name to begin with; its network is used, with a
    new class layer.
    """
    check_choice("kind", kind, LISTS)
    check_choice("routing", routing, ROUTING)
    if kind == "table" and holds_numbers(path):
        return _own_numbers(path, overrides, routing)
    listing = LISTS[kind](path)
    classes = len(listing.class_names)
    if start:
        sized, image, loss, draws = _started(start, classes, listing.multilabel)
        known = read_weights(find_weights(start))[1].get("recipe", {}).get("data", {}).get("options", {})
        if known.get("path") in (path, str(Path(path).expanduser().resolve())):  # others of the same are held out now
            same_labels(listing, path, None, known.get("examples", 0))
        image = survey(listing, image[1:], image[0])
    else:
        image, loss = survey(listing, size), ROUTING[routing].loss
        sized = size_model(image, classes, routing, multilabel=listing.multilabel, backbone=backbone)
        draws = bool(sized.overrides["decoder"])
    (c, h, w), train = image, assign(listing, 0).count("train")
    content = _content(kind, path, listing, "pictures", train, IMAGES, loss)
    content["model"] = {"name": sized.name, "overrides": sized.overrides}
    content["data"]["options"] |= {"size": [h, w], "channels": c}
    content["augment"] = {"shift": 1 if min(h, w) < 40 else 2}
    content["loss"]["reconstruction"] = round(4 / math.prod(image), 6) if draws else 0.0
    content["train"]["ema"] = 0.98
    recipe = make_recipe(content, overrides)
    if recipe.data.options["size"] != [h, w]:
        raise ValueError(f"data.size: expected {[h, w]}, which the model is made for, got "
                         f"{recipe.data.options['size']}; --size HEIGHT WIDTH changes both")  # fmt: skip
    data = f"data: {train:,} pictures to train on, brought to {c} x {h} x {w}; {_classes(listing)} pictures"
    return recipe, (data, *sized.why, _plan(recipe))


def _started(start: str, classes: int, multilabel: bool) -> tuple[Sized, Image, str, bool]:
    """The network of `start` for other classes; the size of its images, its algorithm's loss, and whether it draws."""
    model: Any = load(start, classes=classes)
    if model.image is None:
        raise ValueError(f"--from: expected a network for pictures, got {start}, {model.name}, which reads texts")
    name = str(Path(start).expanduser().resolve()) if Path(start).exists() else start
    overrides: dict[str, Any] = {"pretrained": name, "classes": classes}
    if model.decoder is not None and multilabel:
        overrides["decoder"] = False
    loss = ROUTING[model.capsules.layers[-1].name].loss if hasattr(model, "capsules") else "cross_entropy"
    why = f"network: {model.name} with the weights of {start}; only the layer of {classes} classes is new"
    return Sized(model.name, overrides, (0, 0), (why,)), model.image, loss, model.decoder is not None and not multilabel


def _own_numbers(path: str, overrides: Iterable[str], routing: str) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe for a table of numbers: a hidden layer, then primary capsules at a single place."""
    listing = list_numbers(path)
    columns = feature_columns(read_rows(path, "--table", "height,width,label")[2])
    classes, train = len(listing.class_names), assign(listing, 0).count("train")
    mean, std = feature_scale(listing)
    content = _content("numbers", path, listing, "rows", train, IMAGES, ROUTING[routing].loss)
    primary = {"types": TYPES[0], "dim": DIM, "kernel": 1, "stride": 1}
    content["model"] = {"name": "capsnet_tiny", "overrides": {
        "image": [len(columns), 1, 1], "classes": classes, "decoder": False, "primary": primary,
        "backbone": {"channels": HIDDEN, "kernel": 1, "stride": 1},
        **({} if routing == "dynamic" else {"routing": routing}),
    }}  # fmt: skip
    content["data"]["options"] |= {"columns": columns, "mean": mean, "std": std}
    recipe = make_recipe(content, overrides)
    return recipe, (
        f"data: {train:,} rows of {len(columns)} numbers to train on, scaled to mean 0 and deviation 1; "
        f"{_classes(listing)} rows",
        f"network: {HIDDEN} hidden units, {TYPES[0]} primary capsules of {DIM}, {classes} class capsules of "
        f"{CLASS_DIM}, routed by {routing}",
        _plan(recipe),
    )


def own_text_recipe(
    path: str, transformer: str, overrides: Iterable[str] = (), *, routing: str = "heinsen"
) -> tuple[Recipe, tuple[str, ...]]:
    """(recipe, a line on every choice) for a table of texts. transformer: a folder, or a name found on this machine."""
    any_length = [name for name in ROUTING if not Route(name).counts_children(parents=2, dim=2)]  # as texts have
    check_choice("routing", routing, any_length)
    if not transformer:
        raise ValueError("--transformer: expected a folder or name of a transformer, got none; --text needs one, whose "
                         "hidden states are routed")  # fmt: skip
    listing = list_text(path)
    classes, parts, folder = len(listing.class_names), assign(listing, 0), Path(transformer).expanduser()
    train = parts.count("train")
    content = _content("text", path, listing, "texts", train, TEXTS, ROUTING[routing].loss)
    other = {} if routing == "heinsen" else {"routing": routing}
    content["model"] = {"name": "heinsen_sst2", "overrides": {"classes": classes, **other}}
    name = str(folder.resolve()) if folder.is_dir() else transformer
    content["data"] |= {"transformer": name, "tokens": TOKENS}
    select = "validation" if "validation" in parts else "last"
    content["train"] |= {"capture": False, "clip": 1.0, "select": select}
    recipe = make_recipe(content, overrides)
    most = recipe.data.tokens
    cut = sum(len(text.split()) * WORD_PIECES > most for text in listing.files)
    longer = f"; about {cut:,} texts are longer, data.tokens={2 * most} reads more" if cut else ""
    return recipe, (
        f"data: {train:,} texts to train on; {_classes(listing)}",
        f"transformer: {recipe.data.transformer}, its weights frozen; every layer's hidden state of every token "
        "becomes a capsule, computed batch by batch",
        f"tokens: the first {most} of each text{longer}",
        f"capsules: 64 of 2, then {classes} classes, routed by {routing}",
        _plan(recipe),
    )


def own_command(recipe: Recipe) -> list[str]:
    """The arguments of `flashcaps train` that make this recipe again: its name, or the user's data and the choices."""
    data, overrides = recipe.data, recipe.model.overrides
    if data.name not in FLAGS:
        return [recipe.name]
    words = [FLAGS[data.name], data.options["path"]]
    if data.name == "text":
        words += ["--transformer", data.transformer]
    elif data.name in LISTS and "pretrained" not in overrides:
        words += ["--size", *map(str, data.options["size"])]
    given = {read_override(word)[0].rpartition(".")[2] for word in recipe.overrides}  # --routing chooses the loss, too
    for key, flag in (("routing", "--routing"), ("backbone", "--backbone"), ("pretrained", "--from")):
        words += [flag, overrides[key]] if isinstance(overrides.get(key), str) and key not in given else []
    return words


def _content(
    kind: str, path: str, listing: Listing, what: str, train: int, length: Length, loss: str
) -> dict[str, Any]:
    """What recipes for pictures and for texts have in common."""
    several = listing.multilabel
    batch = next((b for b in length.batches if train >= 8 * b), max(1, min(2, train)))  # eight steps an epoch
    epochs = min(max(length.steps * batch // max(train, 1), length.epochs[0]), length.epochs[1])
    options: dict[str, Any] = {
        "path": path if kind == "hub" else str(Path(path).expanduser().resolve()),
        "class_names": list(listing.class_names),
        "examples": fingerprint(listing),
    }
    return {
        "name": "".join(c if c.isalnum() else "_" for c in Path(path).stem) or kind,
        "about": f"{len(listing.files):,} {what} of {len(listing.class_names)} classes",
        "data": {"name": kind, "options": options | ({"multilabel": True} if several else {})},
        "loss": {"kind": SEVERAL[loss] if several else loss},
        "optimiser": {"kind": "adamw", "lr": 0.002, "weight_decay": 0.01},
        "schedule": {"kind": "cosine", "warmup": 0.1},
        "train": {"epochs": epochs, "batch": batch, "precision": "fp32", "log_every": 10},
    }


def _classes(listing: Listing) -> str:
    counts = count_classes(listing).values()
    several = ", several at once" if listing.multilabel else ""
    return f"{len(counts)} classes{several} of {min(counts):,} to {max(counts):,}"


def _plan(recipe: Recipe) -> str:
    length = f"{recipe.train.epochs} epochs, batch {recipe.train.batch}"
    return f"training: {length}, {recipe.loss.kind} loss; key=value changes any of these"
