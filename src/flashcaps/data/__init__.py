"""Data sets by name: load_data("mnist") reads published files, load_data("images", path="pets") your own pictures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from ..plugins import Registry
from ..routing.checks import nearest
from .affnist import affnist, affnist_style, translated_mnist
from .cifar import cifar10, cifar100
from .files import Root, data_root
from .mnist import digits, fashion_mnist, mnist
from .multimnist import DiverseMultiMNIST, MultiMNIST, diverse_multimnist, multimnist
from .norb import smallnorb
from .random import make_generator
from .split import Batch, Dataset, Split, describe, holdout, to_float
from .sst import sst2, sst5
from .svhn import svhn
from .synthetic_norb import synthetic_norb
from .user_images import OWN, from_torch, read_numbers, read_pictures, read_text

DATA: Registry[Callable[..., Dataset]] = Registry("flashcaps.data", {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "smallnorb": smallnorb,
    "affnist": affnist,
    "affnist_style": affnist_style,
    "translated_mnist": translated_mnist,
    "multimnist": multimnist,
    "diverse_multimnist": diverse_multimnist,
    "sst5": sst5,
    "sst2": sst2,
    "digits": digits,
    "synthetic_norb": synthetic_norb,
    "images": partial(read_pictures, "images"),
    "table": partial(read_pictures, "table"),
    "hub": partial(read_pictures, "hub"),
    "numbers": read_numbers,
    "text": read_text,
})  # fmt: skip


def load_data(name: str, root: Root = None, **options: Any) -> Dataset:
    """The data set `name`, from `root`, else $FLASHCAPS_DATA, else ~/.cache/flashcaps."""
    load = find_data(name)
    known = {option: p.default for option, p in inspect.signature(load).parameters.items() if option != "root"}
    for option in options:
        if option not in known:
            raise ValueError(f"{option}: no option of {name}, which has {', '.join(known) or 'none'}")
    for option, default in known.items():
        if default is inspect.Parameter.empty and option not in options:
            raise ValueError(f"{option}: expected with {name}, got none")
    return load(root, **options)


def find_data(name: str) -> Callable[..., Dataset]:
    """The function that loads the data set `name`; the error for an unknown name has the nearest ones."""
    known = name.replace("-", "_")
    if name == OWN:
        raise FileNotFoundError("data: the model was trained on a Dataset given in Python, which a command cannot open")
    if known not in DATA:
        hint = nearest(known.lower(), DATA) or f"; there are {', '.join(DATA)}"
        raise ValueError(f"name: no data set {name!r}{hint}")
    return DATA[known]


__all__ = [
    "DATA",
    "Batch",
    "Dataset",
    "DiverseMultiMNIST",
    "MultiMNIST",
    "Split",
    "data_root",
    "describe",
    "from_torch",
    "holdout",
    "load_data",
    "make_generator",
    "to_float",
]
