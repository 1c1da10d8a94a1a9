"""Viewpoints of toys: train on some, test on others. The same for smallNORB and for synthetic-NORB."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from .split import Dataset, Split

AZIMUTHS, ELEVATIONS = 18, 9  # steps of 20 degrees from 0, and of 5 degrees from 30

Indices = Iterable[int] | None


def hold_out_views(
    dataset: Dataset, held_out_azimuths: Iterable[int] = (), held_out_elevations: Iterable[int] = ()
) -> Dataset:
    """Train on familiar viewpoints, test on novel ones; `validation` is the test's instances from familiar viewpoints.

    Novel examples have a held-out azimuth (step 0..17) or elevation (step 0..8), familiar ones neither. A run's curve
    follows the familiar viewpoints and its test is on the novel ones: two numbers on the same toys, none of which was
    trained on. Nothing to hold out: the data set as it is.
    """
    azimuths, elevations = sorted(set(held_out_azimuths)), sorted(set(held_out_elevations))
    if not azimuths and not elevations:
        return dataset
    check_held_out(azimuths, elevations)

    def is_novel(split: Split) -> Tensor:
        azimuth, elevation = split.info["azimuth"], split.info["elevation"]
        return (torch.isin(azimuth, torch.tensor(azimuths, device=azimuth.device) * 2)
                | torch.isin(elevation, torch.tensor(elevations, device=elevation.device)))

    novel = is_novel(dataset.test)
    indices = {"train": ~is_novel(dataset.train), "familiar": ~novel, "novel": novel}
    for name, mask in indices.items():
        if not mask.any():
            raise ValueError("held_out_azimuths, held_out_elevations: expected steps that leave some viewpoints and "
                             f"are among those there are, got {azimuths}, {elevations}: no {name} examples")
    train, familiar, unseen = (mask.nonzero()[:, 0] for mask in indices.values())
    return replace(dataset, train=dataset.train.select(train), validation=dataset.test.select(familiar),
                   test=dataset.test.select(unseen))


def check_held_out(azimuths: Iterable[int], elevations: Iterable[int]) -> None:
    """Raises for steps that do not exist; holding out none is fine."""
    chosen_steps("held_out_azimuths", tuple(azimuths) or None, AZIMUTHS)
    chosen_steps("held_out_elevations", tuple(elevations) or None, ELEVATIONS)


def chosen_steps(name: str, indices: Indices, count: int) -> list[int]:
    """Sorted unique indices below `count`; all of them for None."""
    chosen = sorted(set(range(count) if indices is None else (int(i) for i in indices)))
    if not chosen or chosen[0] < 0 or chosen[-1] >= count:
        raise ValueError(f"{name}: expected steps from 0 to {count - 1}, at least one, got {chosen}; None means all")
    return chosen
