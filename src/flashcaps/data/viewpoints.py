"""Viewpoints of toys: train on some, test on others. The same for smallNORB and for synthetic-NORB."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .types import Dataset, Split

AZIMUTHS, ELEVATIONS = 18, 9  # steps of 20 degrees from 0, and of 5 degrees from 30

Indices = Iterable[int] | None


class Viewpoints(NamedTuple):
    """Training examples from familiar viewpoints, and the test examples from familiar and from novel ones."""

    train: Split
    familiar: Split
    novel: Split


def split_viewpoints(
    dataset: Dataset, *, held_out_azimuths: Iterable[int] = (), held_out_elevations: Iterable[int] = ()
) -> Viewpoints:
    """Hold viewpoints out of training; novel test examples have a held-out azimuth or elevation, familiar ones neither.

    Steps as in `synthetic_norb` (azimuth 0..17, elevation 0..8). Works on smallNORB as well.
    """
    azimuths, elevations = sorted(set(held_out_azimuths)), sorted(set(held_out_elevations))
    if not azimuths and not elevations:
        raise ValueError("held_out_azimuths, held_out_elevations: expected at least one step to hold out, got none")
    check_held_out(azimuths, elevations)

    def novel(split: Split) -> Tensor:
        azimuth, elevation = split.info["azimuth"], split.info["elevation"]
        return (torch.isin(azimuth, torch.tensor(azimuths, device=azimuth.device) * 2)
                | torch.isin(elevation, torch.tensor(elevations, device=elevation.device)))

    unseen = novel(dataset.test)
    return Viewpoints(dataset.train.select((~novel(dataset.train)).nonzero()[:, 0]),
                      dataset.test.select((~unseen).nonzero()[:, 0]), dataset.test.select(unseen.nonzero()[:, 0]))


def hold_out_views(
    dataset: Dataset, held_out_azimuths: Iterable[int] = (), held_out_elevations: Iterable[int] = ()
) -> Dataset:
    """Train on familiar viewpoints, test on novel ones; `validation` is the test's instances from familiar viewpoints.

    So a run's curve follows the familiar viewpoints and its test is on the novel ones: two numbers on the same toys,
    none of which was trained on. Nothing to hold out: the data set as it is.
    """
    azimuths, elevations = tuple(held_out_azimuths), tuple(held_out_elevations)
    if not azimuths and not elevations:
        return dataset
    parts = split_viewpoints(dataset, held_out_azimuths=azimuths, held_out_elevations=elevations)
    for name, split in parts._asdict().items():
        if len(split) == 0:
            raise ValueError("held_out_azimuths, held_out_elevations: expected steps that leave some viewpoints and "
                             f"are among those there are, got {list(azimuths)}, {list(elevations)}: no {name} examples")
    return replace(dataset, train=parts.train, validation=parts.familiar, test=parts.novel)


def check_held_out(azimuths: Iterable[int], elevations: Iterable[int]) -> None:
    """Steps there are; none is fine."""
    chosen_steps("held_out_azimuths", tuple(azimuths) or None, AZIMUTHS)
    chosen_steps("held_out_elevations", tuple(elevations) or None, ELEVATIONS)


def chosen_steps(name: str, indices: Indices, count: int) -> list[int]:
    """Sorted unique indices below `count`; all of them for None."""
    chosen = sorted(set(range(count) if indices is None else (int(i) for i in indices)))
    if not chosen or chosen[0] < 0 or chosen[-1] >= count:
        raise ValueError(f"{name}: expected steps from 0 to {count - 1}, at least one, got {chosen}; None means all")
    return chosen
