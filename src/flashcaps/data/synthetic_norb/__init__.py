"""synthetic-NORB: rendered toys in place of smallNORB, with its categories, labels and splits.

Five categories of ten instances, each seen from 18 azimuths and 9 elevations under 6 lightings by two cameras. As in
smallNORB, instances 4, 6, 7, 8 and 9 are for training and the other five for testing: 24,300 stereo pairs each.
The seed determines everything, and a pair looks the same in a subset as in the whole set.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from ..files import Root, data_root, note_sums, read_checked
from ..norb import AZIMUTHS, ELEVATIONS, Indices, check_held_out, chosen_steps, hold_out_views
from ..random import draws
from ..split import Dataset, Split
from .render import LIGHTINGS, Views, render
from .toys import CATEGORIES, assemble

RENDERER_VERSION = 1                # part of a cache file's name: raise it whenever any image would change
TRAIN_INSTANCES, TEST_INSTANCES = (4, 6, 7, 8, 9), (0, 1, 2, 3, 5)
INFO = ("instance", "elevation", "azimuth", "lighting")         # in the order of smallNORB's info file


def synthetic_norb(root: Root = None, *, seed: int = 0, size: int = 96, azimuths: Indices = None,
                   elevations: Indices = None, lightings: Indices = None, held_out_azimuths: Iterable[int] = (),
                   held_out_elevations: Iterable[int] = (), device: torch.device | str = "cpu",
                   cache: bool = True) -> Dataset:
    """Stereo pairs (N, 2, size, size), the left camera's image first; the category changes fastest, as in smallNORB.

    azimuths, elevations, lightings: which steps to render (0..17, 0..8, 0..5), all by default.
    held_out_azimuths, held_out_elevations: viewpoints to test on and not to train on, as `hold_out_views` says.
    info: instance 0..9, elevation 0..8, azimuth 0..34 (even, tens of degrees), lighting 0..5, as smallNORB stores them.
    The images are made on `device` and come back on the CPU. With cache=True they are kept under the data root.
    """
    if size < 8:
        raise ValueError(f"size: expected at least 8 pixels, got {size}; smallNORB has 96")
    held_out = tuple(held_out_azimuths), tuple(held_out_elevations)
    check_held_out(*held_out)
    chosen = {"elevations": chosen_steps("elevations", elevations, ELEVATIONS),
              "azimuths": chosen_steps("azimuths", azimuths, AZIMUTHS),
              "lightings": chosen_steps("lightings", lightings, len(LIGHTINGS))}
    options = {"version": RENDERER_VERSION, "seed": seed, "size": size, **chosen}
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]  # for the chosen steps
    path = data_root(root) / "synthetic_norb" / f"v{RENDERER_VERSION}-seed{seed}-{size}px-{digest}.safetensors"
    tensors = _load(path) if cache else None
    if tensors is None:
        grid = torch.cartesian_prod(*map(torch.tensor, chosen.values())).view(-1, 3).T  # (3, V), lighting fastest
        tensors = _render_all(seed, size, grid, device)
        if cache:
            _save(path, tensors)
    train, test = (Split(tensors[f"{name}.images"], tensors[f"{name}.labels"],
                         {key: tensors[f"{name}.{key}"] for key in INFO}) for name in ("train", "test"))
    names = tuple(CATEGORIES)
    whole = Dataset("synthetic_norb", train, test, len(names), (2, size, size), class_names=names)
    return hold_out_views(whole, *held_out)


def _images(category: int, instance: int, seed: int, size: int, grid: Tensor,
            device: torch.device | str = "cpu") -> Tensor:
    """Pairs (V, 2, size, size) of one toy, on the CPU."""
    elevation, azimuth, lighting = grid.to(device)
    toy = 10 * category + instance
    view = ((toy * ELEVATIONS + elevation) * AZIMUTHS + azimuth) * len(LIGHTINGS) + lighting
    views = Views(20.0 * azimuth, 30 + 5.0 * elevation, lighting, draws(seed, view, 1)[:, 0])
    return render(assemble(list(CATEGORIES)[category], instance, seed), views, size).cpu()


def _render_all(seed: int, size: int, grid: Tensor, device: torch.device | str) -> dict[str, Tensor]:
    """Both splits as flat tensors by name: train.images, train.labels, train.instance, ..."""
    tensors = {}
    categories, views = len(CATEGORIES), grid.shape[1]
    for name, instances in (("train", TRAIN_INSTANCES), ("test", TEST_INSTANCES)):
        images = torch.empty(len(instances), views, categories, 2, size, size, dtype=torch.uint8)
        for row, instance in enumerate(instances):
            for category in range(categories):
                images[row, :, category] = _images(category, instance, seed, size, grid, device)
        columns = {"labels": torch.arange(categories), "instance": torch.tensor(instances)[:, None, None],
                   "elevation": grid[0][:, None], "azimuth": 2 * grid[1][:, None], "lighting": grid[2][:, None]}
        tensors[f"{name}.images"] = images.flatten(0, 2)
        for key, column in columns.items():
            tensors[f"{name}.{key}"] = column.expand(len(instances), views, categories).reshape(-1)
    return tensors


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")  # renamed once it is whole
    try:
        save_file(tensors, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    note_sums(path.parent, [path])


def _load(path: Path) -> dict[str, Tensor] | None:
    """The cached tensors; None where there are none, with a warning where the file is damaged."""
    try:
        return load(read_checked(path)) if path.is_file() else None
    except (ValueError, SafetensorError) as error:
        warnings.warn(f"{path}: damaged cache file ({error}); rendering again", stacklevel=3)
        return None
