"""Loads a recipe's [data] to the device: what the loop trains and evaluates on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..data import Dataset, DiverseMultiMNIST, Split, holdout, load_data
from ..data.augment import resize
from ..data.files import Root
from ..data.split import StoredImages
from .batches import Held, HeldPairs, ImageStream, PairStream, Share, Stream, held_images, spread
from .recipe import Augment, Data, Recipe
from .streaming import StreamedImages

DEV_EXAMPLES = 512


@dataclass(frozen=True)
class Sources:
    """train is None where only evaluation was asked for. options: overrides of the model that follow from the data."""

    dataset: Dataset
    train: Stream | None
    validation: Held | None
    test: Held
    options: dict[str, Any]


def open_sources(
    recipe: Recipe, root: Root, device: torch.device, share: Share | None, *, dev: bool = False
) -> Sources:
    """Loads, holds out, resizes and moves the data. share None: for evaluation alone. dev: a few hundred examples."""
    spec = recipe.data
    dataset, validation = load_splits(spec, root, device)
    streamed = isinstance(dataset.train.images, StoredImages)
    if streamed:
        _check_streamed(recipe, device, share)
    splits = {"train": dataset.train, "test": dataset.test, "validation": validation}
    for name, split in splits.items():
        if split is not None and dev:
            split = split.select(spread(len(split), DEV_EXAMPLES))
        if split is not None and spec.resize:
            split = replace(split, images=resize(split.images, spec.resize))
        splits[name] = split if split is None else split.to(device)
    if dataset.train.text is not None:
        return _text(recipe, dataset, splits, device, share)
    if dataset.compose is not None:
        return _pairs(recipe, dataset, splits, share, DEV_EXAMPLES if dev else spec.test)
    train, test = splits["train"], splits["test"]
    assert train is not None
    assert test is not None
    crop = recipe.augment.crop
    held = None if splits["validation"] is None else held_images(splits["validation"], crop, dataset)
    seed, classes = recipe.train.seed, dataset.classes
    kind = StreamedImages if streamed else ImageStream
    stream = None if share is None else kind(train, recipe.augment, share, classes, seed)
    image = (dataset.shape[0], crop, crop) if crop else dataset.shape
    options = {"classes": classes, "image": image} if streamed else {}
    return Sources(dataset, stream, held, held_images(test, crop, dataset), options)


def _check_streamed(recipe: Recipe, device: torch.device, share: Share | None) -> None:
    if recipe.data.resize:
        raise ValueError("data.resize: pictures that stay on disk are scaled as they are read; use data.size=[H, W]")
    if device.type == "cuda" and recipe.train.capture and share is not None and share.world == 1:
        raise ValueError("train.capture: a step that reads files cannot be captured; run it with train.capture=false")


def load_splits(spec: Data, root: Root, device: torch.device) -> tuple[Dataset, Split | None]:
    """The data set without the examples held out of training, and those."""
    options = dict(spec.options)
    if spec.name == "synthetic_norb":
        options.setdefault("device", str(device))  # rendered there
    dataset = load_data(spec.name, root, **options)
    if dataset.validation is not None or not spec.validation:
        return dataset, dataset.validation
    train, validation = holdout(dataset.train, count=spec.validation)
    if spec.held:  # the same examples, loaded with other options
        _, validation = holdout(load_data(spec.name, root, **options | spec.held).train, count=spec.validation)
    return replace(dataset, train=train), validation


def _pairs(recipe: Recipe, dataset: Dataset, splits: dict[str, Any], share: Share | None, count: int) -> Sources:
    compose = dataset.compose
    assert compose is not None
    if recipe.augment != Augment():
        raise ValueError(f"augment: expected none for composed images, which are all new, got {recipe.augment}")
    rule = "threshold" if compose is DiverseMultiMNIST else "top2"

    def held(split: Split | None) -> HeldPairs | None:
        return None if split is None else HeldPairs(compose(split).fixed(count), rule, dataset.classes)

    stream = None if share is None else PairStream(compose(splits["train"]), share, recipe.train.seed)
    test = held(splits["test"])
    assert test is not None
    return Sources(dataset, stream, held(splits["validation"]), test, {})


def _text(
    recipe: Recipe, dataset: Dataset, splits: dict[str, Any], device: torch.device, share: Share | None
) -> Sources:
    from .text import HeldText, Phrases, TextStream, load_transformer, open_phrases

    spec, seed, classes = recipe.data, recipe.train.seed, dataset.classes
    transformer = load_transformer(spec.transformer, device)

    def phrases(name: str) -> Phrases:
        return open_phrases(splits[name], transformer, spec.tokens, spec.keep)

    stream = None if share is None else TextStream(phrases("train"), recipe.augment, share, classes, seed)
    held = {name: HeldText(phrases(name), classes) for name in ("validation", "test") if splits[name] is not None}
    options = {"layers": transformer.layers, "width": transformer.width}
    return Sources(dataset, stream, held.get("validation"), held["test"], options)
