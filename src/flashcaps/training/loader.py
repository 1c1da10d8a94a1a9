"""Loads the data of a recipe to the device, as the streams and sets that the loop trains and evaluates on."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..data import Dataset, DiverseMultiMNIST, Split, holdout, load_data
from ..data.augment import resize
from ..data.files import Root
from ..data.split import StoredImages
from .batches import Held, ImageStream, PairStream, Share, Stream, StreamedImages, held_images, spread
from .recipe import Augment, Data, Recipe

DEV_EXAMPLES = 512


@dataclass(frozen=True)
class Sources:
    """train is None for evaluation alone. options: overrides of the model that follow from the data."""

    dataset: Dataset
    train: Stream | None
    validation: Held | None
    test: Held
    options: dict[str, Any]


def open_sources(
    recipe: Recipe, root: Root, device: torch.device, share: Share | None, *, dev: bool = False,
    given: Dataset | None = None,
) -> Sources:  # fmt: skip
    """Loads, holds out, resizes and moves the data. share None: for evaluation alone. dev: a few hundred examples.

    given: data to use instead of those that the recipe names; the model is built for their size and classes.
    """
    spec = recipe.data
    dataset, validation = load_splits(spec, root, device, given)
    streamed = isinstance(dataset.train.images, StoredImages)
    if streamed and spec.resize:
        raise ValueError("data.resize: pictures that stay on disk are scaled as they are read; use data.size=[H, W]")
    if streamed and device.type == "cuda" and recipe.train.capture and share is not None:
        raise ValueError("train.capture: a step that reads files cannot be captured; run it with train.capture=false")
    splits: dict[str, Any] = {"train": dataset.train, "test": dataset.test, "validation": validation}
    splits = {name: split for name, split in splits.items() if split is not None}
    for name, split in splits.items():
        if dev:
            split = split.select(spread(len(split), DEV_EXAMPLES))
        if spec.resize:
            split = replace(split, images=resize(split.images, spec.resize))
        splits[name] = split.to(device)
    if dataset.train.text is not None:
        return _text(recipe, dataset, splits, device, share)
    if dataset.compose is not None:
        return _pairs(recipe, dataset, splits, share, DEV_EXAMPLES if dev else spec.test)
    crop, classes = recipe.augment.crop, dataset.classes
    held = {name: held_images(split, crop, dataset) for name, split in splits.items()}
    kind = StreamedImages if streamed else ImageStream
    stream = None if share is None else kind(splits["train"], recipe.augment, share, classes, recipe.train.seed)
    image = (dataset.shape[0], crop, crop) if crop else dataset.shape
    options = {"classes": classes, "image": image} if streamed or given else {}
    return Sources(dataset, stream, held.get("validation"), held["test"], options)


def load_splits(
    spec: Data, root: Root, device: torch.device, given: Dataset | None = None
) -> tuple[Dataset, Split | None]:
    """The data set without the examples held out of training, and those."""
    options = dict(spec.options)
    if spec.name == "synthetic_norb":
        options.setdefault("device", str(device))  # rendered there
    dataset = given or load_data(spec.name, root, **options)
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
    rule = "threshold" if compose is DiverseMultiMNIST else "top2"  # one digit or two, or always two
    stream = None if share is None else PairStream(compose(splits["train"]), share, recipe.train.seed)
    held = {name: Held(compose(split).at, count, dataset.classes, rule, split.labels.device)
            for name, split in splits.items() if name != "train"}
    return Sources(dataset, stream, held.get("validation"), held["test"], {})


def _text(
    recipe: Recipe, dataset: Dataset, splits: dict[str, Any], device: torch.device, share: Share | None
) -> Sources:
    from .text import HeldText, TextStream, Transformer, open_phrases

    spec, classes = recipe.data, dataset.classes
    transformer = Transformer(spec.transformer, device)
    wanted = [name for name in splits if name != "train" or share is not None]
    phrases = {name: open_phrases(splits[name], transformer, spec.tokens, spec.keep) for name in wanted}
    stream = None if share is None else TextStream(phrases["train"], recipe.augment, share, classes, recipe.train.seed)
    held = {name: HeldText(found, classes) for name, found in phrases.items()}
    options = {"layers": transformer.layers, "width": transformer.width}
    return Sources(dataset, stream, held.get("validation"), held["test"], options)
