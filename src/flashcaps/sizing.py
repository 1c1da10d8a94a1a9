"""A model for data nobody has seen before: sizes by rule from the images and the number of classes, with reasons.

    sized = size_model((3, 50, 70), classes=3)
    model = create_model(sized.name, **sized.overrides)
    print("\\n".join(sized.why))
"""

from __future__ import annotations

import copy
import importlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .backbones import Image
from .capsule_layer import CapsuleLayer
from .models import create_model
from .own_data import LISTS, Survey, survey
from .recipe import Recipe, make_recipe
from .routing._checks import check_choice

LONGEST = 10  # places along the longer side of the primary grid: beyond, routing costs more than it finds
STRIDES = (1, 2, 3, 4)  # of one convolution; images that need more get a residual network
FEATURES = 20  # places along the longer side that a residual network leaves
SMALLEST = 6  # pixels
TYPES = (16, 8, 4, 2)  # of primary capsules
WEIGHTS = 1 << 21  # of the transforms between primary and class capsules
PIXELS = 64 * 64 * 3  # the most a decoder draws: its last layer has as many rows
DIM, CLASS_DIM = 8, 16
STEPS, EPOCHS, BATCHES = 1200, (10, 60), (128, 64, 32, 16, 8, 4, 2)

# What each algorithm's class scores are trained with: one class an image, several at once.
LOSSES = {"dynamic": ("margin", "margin"), "discriminative": ("margin", "margin"), "em": ("spread", "margin"),
          "attention": ("cross_entropy", "bce"), "heinsen": ("cross_entropy", "bce")}  # fmt: skip


class Sized(NamedTuple):
    """A model's name and overrides, the grid of its primary capsules, and a line on every choice."""

    name: str
    overrides: dict[str, Any]
    grid: tuple[int, int]
    why: tuple[str, ...]


def size_model(image: Image, classes: int, routing: str = "dynamic", *, multilabel: bool = False) -> Sized:
    """Backbone, primary grid, capsule counts and decoder for images (C, H, W)."""
    c, h, w = image
    if min(h, w) < SMALLEST:
        raise ValueError(f"image: expected at least {SMALLEST} x {SMALLEST} pixels, got {h} x {w}; scale it up")
    check_choice("routing", routing, LOSSES)
    stem = _stem(h, w)
    name, backbone, primary, grid, why = _one_convolution(image, stem) if stem else _residual(h, w)
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
        last = "decoder: none, for it would have to be told which of several classes to draw"
    else:
        last = f"decoder: none, {pixels:,} pixels are more than {PIXELS:,}; model.decoder=true has one all the same"
    overrides: dict[str, Any] = {
        "image": list(image),
        "classes": classes,
        "backbone": backbone,
        "primary": {"types": types, "dim": DIM, **primary},
        "decoder": [128, 256] if draws else False,
    }
    if routing != "dynamic":
        overrides["routing"] = routing
    return Sized(name, overrides, grid, (why, *more, last))


class LastMap(nn.Module):
    """The last of the feature maps a network gives, (B, C, H, W)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)[-1]


def timm_backbone(name: str, *, channels: int = 3, pretrained: bool = True, timm: Any = None) -> nn.Module:
    """A model of timm without its classifier, for `create_model(..., backbone=)`: images -> its last feature map."""
    if timm is None:
        try:
            timm = importlib.import_module("timm")
        except ImportError:
            raise ImportError("timm is not here: pip install 'flashcaps[timm]', or give any nn.Module") from None
    return LastMap(timm.create_model(name, pretrained=pretrained, features_only=True, in_chans=channels))


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


def _one_convolution(
    image: Image, stem: Stem
) -> tuple[str, dict[str, Any], dict[str, Any], tuple[int, int], str]:
    kernel, stride, primary_kernel, primary_stride, grid = stem
    channels = 32 if image[0] == 1 else 64
    why = (f"backbone: one convolution, {channels} channels, kernel {kernel}, stride {stride}: the smallest stride "
           f"that leaves at most {LONGEST} places along the longer side")  # fmt: skip
    primary = {"kernel": primary_kernel, "stride": primary_stride}
    return "capsnet_tiny", {"channels": channels, "kernel": kernel, "stride": stride}, primary, grid, why


def _residual(height: int, width: int) -> tuple[str, dict[str, Any], dict[str, Any], tuple[int, int], str]:
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
    kind: str, path: str, overrides: Iterable[str] = (), *, routing: str = "dynamic", size: Sequence[int] = ()
) -> tuple[Recipe, tuple[str, ...]]:
    """(recipe, a line on every choice) for somebody's pictures, of which a sample is read.

    kind: "images" (a folder), "table" (a .csv) or "hub" (a name). size: (H, W) they are brought to.
    """
    check_choice("kind", kind, LISTS)
    listing = LISTS[kind](path)
    found = survey(listing, size)
    sized = size_model(found.image, len(listing.class_names), routing, multilabel=listing.multilabel)
    where = path if kind == "hub" else str(Path(path).expanduser().resolve())
    options = {"path": where, "size": list(found.image[1:]), "channels": found.image[0],
               "class_names": list(listing.class_names)}  # fmt: skip
    if listing.multilabel:
        options["multilabel"] = True
    content = {
        "name": "".join(c if c.isalnum() else "_" for c in Path(path).stem) or kind,
        "about": f"{len(listing.files):,} pictures of {len(listing.class_names)} classes",
        "model": {"name": sized.name, "overrides": sized.overrides},
        "data": {"name": kind, "options": options},
        **_training(found, routing, listing.multilabel, sized.overrides["decoder"]),
    }
    recipe = make_recipe(content, overrides)
    return recipe, (_about(found, listing.multilabel), *sized.why, _plan(recipe))


def own_command(recipe: Recipe) -> list[str]:
    """What follows `flashcaps train` to make this recipe again: its name, or the pictures it was made for."""
    if recipe.data.name not in LISTS:
        return [recipe.name]
    options, routing = recipe.data.options, recipe.model.overrides.get("routing")
    flag = {"images": "--images", "table": "--table", "hub": "--dataset"}[recipe.data.name]
    return [flag, options["path"], "--size", *map(str, options["size"]), *(["--routing", routing] if routing else [])]


def _training(found: Survey, routing: str, multilabel: bool, decoder: Any) -> dict[str, Any]:
    """How long and with what: about STEPS steps, at least eight in an epoch where there are enough pictures."""
    batch = next((b for b in BATCHES if found.train >= 8 * b), max(1, min(2, found.train)))
    epochs = min(max(STEPS * batch // max(found.train, 1), EPOCHS[0]), EPOCHS[1])
    weight = round(4 / math.prod(found.image), 6) if decoder else 0.0
    return {
        "augment": {"shift": 1 if min(found.image[1:]) < 40 else 2},
        "loss": {"kind": LOSSES[routing][multilabel], "reconstruction": weight},
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
    return f"training: {length}, {recipe.loss.kind} loss; key=value changes any of it"


@torch.no_grad()
def memory_needed(model: nn.Module, image: Image, batch: int) -> int:
    """Bytes a training step takes, by rule: weights five times (gradients, two moments, average), and for the backward
    pass the outputs of all layers, and as much again for their gradients. One image is run to see them."""
    held: list[int] = []

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        tensors = [output] if isinstance(output, Tensor) else [x for x in output if isinstance(x, Tensor)]
        held.append(sum(x.numel() * x.element_size() for x in tensors))

    twin = copy.deepcopy(model).eval()
    for layer in twin.modules():
        if isinstance(layer, CapsuleLayer) or not list(layer.children()):
            layer.register_forward_hook(count)
    weights = list(twin.parameters())
    twin(torch.zeros(1, *image, device=weights[0].device))
    return 5 * sum(p.numel() * p.element_size() for p in weights) + 2 * batch * sum(held)


def memory_free(device: torch.device) -> int | None:
    """Bytes that are free, or None where nobody can say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def memory_warning(recipe: Recipe, device: torch.device, free: int | None = None) -> str | None:
    """A line, where a step would not fit in the memory that is free: which batch would."""
    model = create_model(recipe.model.name, **recipe.model.overrides)
    free = memory_free(device) if free is None else free
    assert model.image is not None
    needed = memory_needed(model, model.image, recipe.train.batch)
    if free is None or needed <= 0.8 * free:
        return None
    fixed, each = memory_needed(model, model.image, 0), memory_needed(model, model.image, 1)
    fits = int((0.8 * free - fixed) // max(each - fixed, 1))
    advice = f"batch={fits} would fit" if fits >= 1 else "make images smaller, data.size=[64,64]"
    return f"a step needs about {_bytes(needed)}, {_bytes(free)} are free on {device}; {advice}"


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
