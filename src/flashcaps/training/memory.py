"""Memory: an estimate of what a training step needs, what is free, and the batch that fits after a step ran out."""

from __future__ import annotations

import copy
import ctypes
import gc
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..models import create_model
from ..models.timm import for_loading
from ..nn.capsules import CapsuleLayer
from .recipe import Recipe

if TYPE_CHECKING:
    from .step import TrainStep

SPARE = 0.8  # the part of free memory that may be planned for; the allocator and the first step take the rest


class OutOfMemory(RuntimeError):
    """A training step did not fit; the message says which batch would."""


@torch.no_grad()
def memory_needed(model: nn.Module, example: Sequence[int], batch: int) -> int:
    """Estimated bytes of a training step: the weights five times (with gradients, two moments and average), and the
    outputs of all layers twice (with gradients), which are measured on one example.

    example: its shape, (C, H, W) of an image or (tokens, layers, width) of a text's hidden states.
    """
    held: list[int] = []

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        held.append(sum(x.nbytes for x in tree_leaves(output) if isinstance(x, Tensor)))

    twin = copy.deepcopy(model).eval()
    for layer in twin.modules():
        if isinstance(layer, CapsuleLayer) or not list(layer.children()):
            layer.register_forward_hook(count)
    weights = list(twin.parameters())
    twin(torch.zeros(1, *example, device=weights[0].device))
    return 5 * sum(p.nbytes for p in weights) + 2 * batch * sum(held)


def memory_free(device: torch.device) -> int | None:
    """Free bytes, or None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, StopIteration), Path("/proc/meminfo").open() as lines:  # counts the file cache as free
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    return None


def memory_warning(recipe: Recipe, device: torch.device, free: int | None = None) -> str | None:
    """A warning where a step would not fit in free memory, with a batch that would; None if it fits, or for text."""
    model = create_model(recipe.model.name, **for_loading(recipe.model.overrides))  # no weights are fetched to count
    free = memory_free(device) if free is None else free
    if model.image is None or free is None:
        return None
    fixed, needed = (memory_needed(model, model.image, batch) for batch in (0, recipe.train.batch))
    if needed <= SPARE * free:
        return None
    each = (needed - fixed) // recipe.train.batch
    fits = int((SPARE * free - fixed) // max(each, 1))
    advice = f"batch={fits} would fit" if fits >= 1 else "make images smaller, data.size=[64,64]"
    return f"a step needs about {in_bytes(needed)}, {in_bytes(free)} are free on {device}; {advice}"


def in_bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


@contextmanager
def batch_that_fits(step: TrainStep, index: Tensor, noise: Tensor) -> Iterator[None]:
    """A context for step.advance(index, noise), (B,) and (B, columns). If it runs out of memory, smaller batches are
    tried, which changes the weights of the failed run, and OutOfMemory says which one fits."""
    try:
        yield
        return
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # which hold the tensors that filled the memory
        reason = str(error).splitlines()[0]
    fits, batch, free = largest_batch(step, index, noise), len(index), memory_free(step.workers.device)
    advice = "try a smaller one, smaller images or fewer capsules"
    if fits:
        parts = next(n for n in range(batch // fits, batch + 1) if batch % n == 0 and batch // n <= fits)
        parts *= step.recipe.train.accumulate
        advice = f"batch={fits} fits, or accumulate={parts} takes {batch} in parts as small"
    room = "" if free is None else f" ({in_bytes(free)} are free)"
    raise OutOfMemory(f"train.batch: {batch} does not fit in the memory of {step.workers.device}{room}; {advice} "
                      f"[{reason}]")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is CUDA's own error, or that of the CPU allocator, a plain RuntimeError."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    on_cpu = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    return on_cpu or isinstance(error, torch.OutOfMemoryError | MemoryError)


def largest_batch(step: TrainStep, index: Tensor, noise: Tensor) -> int:
    """The largest of B/2, B/4, ... whose step fits, by trying them in turn; 0 if none does, or if there are other
    processes, which would have to try, too."""
    parts, size = step.recipe.train.accumulate, len(index)
    step.optimiser.zero_grad(set_to_none=True)
    while step.workers.world == 1 and size // 2 >= parts:
        size = size // 2 // parts * parts
        release(step.workers.device)
        try:
            step.advance(index[:size], noise[:size])
            if step.workers.device.type == "cuda":
                torch.cuda.synchronize(step.workers.device)
            return size
        except Exception as error:
            if not is_out_of_memory(error):
                return 0
            traceback.clear_frames(error.__traceback__)
    return 0


def keep_freed_memory() -> None:
    """Has glibc keep what a process frees; does nothing with other C libraries.

    It returns blocks of over 32 MB to the system at once, which then maps and zeroes new pages for the same tensors of
    the next step. On a CPU that took 30 % of attention_simple_cifar10's step (results/trials/cpu_pages.json).
    """
    with suppress(OSError, AttributeError, TypeError):  # TypeError: Windows has no such handle
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)  # M_MMAP_MAX: blocks with a mapping of their own
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: free bytes at the heap's end that are returned; -1 for never


def release(device: torch.device) -> None:
    """Frees memory that nothing refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
