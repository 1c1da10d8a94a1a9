"""Data sets by name: load_data("mnist") reads the published files, or makes what is made from a seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from .affnist import affnist
from .affnist_style import affnist_style, translated_mnist
from .cifar import cifar10, cifar100
from .digits import digits
from .diverse_multimnist import DiverseMultiMNIST, diverse_multimnist
from .fashion_mnist import fashion_mnist
from .files import Root, data_root
from .mnist import mnist
from .multimnist import FixedPairs, MultiMNIST, multimnist, shard_index
from .norb import smallnorb
from .random import make_generator
from .sst import sst2, sst5
from .svhn import svhn
from .types import Batch, Dataset, Split, describe, holdout, to_float
from .viewpoints import check_held_out, hold_out_views


def _synthetic_norb(root: Root = None, *, held_out_azimuths: Iterable[int] = (),
                    held_out_elevations: Iterable[int] = (), **options: Any) -> Dataset:
    """As `smallnorb` holds viewpoints out; the other options are the renderer's."""
    from .synthetic_norb import synthetic_norb  # the renderer is loaded only when it renders

    azimuths, elevations = tuple(held_out_azimuths), tuple(held_out_elevations)
    check_held_out(azimuths, elevations)  # before anything is rendered
    _check_options("synthetic_norb", synthetic_norb, options)
    return hold_out_views(synthetic_norb(root, **options), azimuths, elevations)


DATA: dict[str, Callable[..., Dataset]] = {
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
    "synthetic_norb": _synthetic_norb,
}


def load_data(name: str, root: Root = None, **options: Any) -> Dataset:
    """The data set `name`, from `root`, else $FLASHCAPS_DATA, else ~/.cache/flashcaps."""
    known = DATA.get(name.replace("-", "_"))
    if known is None:
        close = get_close_matches(name.lower().replace("-", "_"), DATA, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(DATA)}"
        raise ValueError(f"name: no data set {name!r}; {hint}")
    _check_options(name, known, options)
    return known(root, **options)


def _check_options(name: str, known: Callable[..., Dataset], options: dict[str, Any]) -> None:
    takes = inspect.signature(known).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        return  # which checks the rest itself
    has = [option for option in takes if option != "root"]
    for option in options:
        if option not in has:
            raise ValueError(f"{option}: no option of {name}, which has {', '.join(has) or 'none'}")


__all__ = [
    "DATA",
    "Batch",
    "Dataset",
    "DiverseMultiMNIST",
    "FixedPairs",
    "MultiMNIST",
    "Split",
    "data_root",
    "describe",
    "holdout",
    "load_data",
    "make_generator",
    "shard_index",
    "to_float",
]
