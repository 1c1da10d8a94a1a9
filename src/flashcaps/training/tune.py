"""A small search for faster tiles: for each kernel of a model's step a few beside the rule's, one at a time, timed in
the whole step. What is found is kept in a file, and used where it is named.

    flashcaps tune attention_resnet_cifar10 --save tiles.json
    FLASHCAPS_TILES=tiles.json flashcaps train attention_resnet_cifar10
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..kernels.common.tiles import IN_USE, read
from ..models import create_model
from .checkpoint import write_atomic
from .distributed import find_device, set_precision
from .environment import versions
from .loop import convolutions_last
from .recipe import Recipe
from .results import commit, hardware
from .step import record, warm_up

GAIN = 0.01  # of a step's time: less is noise
ALIKE = 0.02  # of the largest element of a gradient: products of TF32 and bf16 stay within it
REPLAYS = 20  # whose median is a step's time
Found = dict[str, list[Any]]
Step = Callable[[], list[Tensor]]


def tune(recipe: Recipe, path: Path, tell: Callable[[str], None] = print) -> Path:
    """Search for the kernels of a recipe's step, at its batch and precision, and add what is found to the file.

    What the file has already is not searched again.
    """
    device = find_device("auto")
    if device.type != "cuda":
        raise ValueError("tune: there is no CUDA device here, and kernels run on no other")
    found = read(path) if path.exists() else {}
    step, known = step_of(recipe, device), len(found)
    before, after = search(step, lambda: replayed(step), found, tell)
    content = {"hardware": hardware(device), "versions": versions(), "commit": commit(), "tiles": found}
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())
    tell(f"{recipe.name}: {len(found) - known} tiles more in {path}, a step from {before:.3f} to {after:.3f} ms")
    return path


def step_of(recipe: Recipe, device: torch.device) -> Step:
    """Forward + backward on random images; gives the gradients of all weights."""
    model = create_model(recipe.model.name, **recipe.model.overrides).to(device)
    if model.image is None:
        raise ValueError(f"tune: {recipe.name} reads no images; expected a recipe of a network that does")
    set_precision(recipe.train.precision)
    if recipe.train.channels_last:
        convolutions_last(model)
    images = torch.rand(recipe.train.batch, *model.image, device=device)
    weights = [p for p in model.parameters() if p.requires_grad]
    half = recipe.train.precision == "bf16"

    def step() -> list[Tensor]:
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if half else nullcontext():
            scores = model(images).scores
        found = torch.autograd.grad(scores.float().square().sum(), weights, allow_unused=True)
        return [g for g in found if g is not None]

    return step


def search(step: Step, clock: Callable[[], float], found: Found, tell: Callable[[str], None]) -> tuple[float, float]:
    """Add to `found` the fastest tile of each kernel that the step asks for, the rule's where no other is faster by
    GAIN. Gives the step's time before and after, in ms.

    A tile that does not fit the device, or with which gradients differ, is passed over.
    """
    from triton.runtime.errors import OutOfResources, PTXASError

    with IN_USE.watching(found) as asked:
        expected = step()
        before = best = clock()
        for name, (rule, others) in list(asked.items()):
            if name in found:
                continue
            kept = list(rule)
            for tile in others:
                found[name] = list(tile)
                try:
                    ms = clock() if alike(step(), expected) else float("inf")
                except (OutOfResources, PTXASError):
                    continue
                if ms < (1 - GAIN) * best:
                    best, kept = ms, list(tile)
            found[name] = kept
            if kept != list(rule):
                tell(f"{name}: {list(rule)} -> {kept}, {best:.3f} ms a step")
    return before, best


def alike(actual: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether gradients differ by rounding alone; false for NaN."""
    pairs = zip(actual, expected, strict=True)
    return all(bool((a - e).abs().max() <= ALIKE * e.abs().max()) for a, e in pairs if e.numel())


def replayed(step: Step) -> float:
    """ms of a step, replayed from a graph: kernels alone, without Python between them."""
    warm_up(step)
    graph, _kept = record(step)  # what replays write to stays until they are over
    times = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)
