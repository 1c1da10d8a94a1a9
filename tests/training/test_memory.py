"""Memory by rule before a run, and the batch that fits after it ran out."""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.models import create_model
from flashcaps.training.autosize import own_recipe
from flashcaps.training.distributed import Workers
from flashcaps.training.memory import OutOfMemory, batch_that_fits, is_out_of_memory, memory_needed, memory_warning
from flashcaps.training.step import TrainStep
from tests.own_pictures import write_pictures

from ..fake_data import small_step


def test_memory_is_counted_before_it_runs_out(tmp_path: Path) -> None:
    recipe, _ = own_recipe("images", str(write_pictures(tmp_path, 12, 20, 24)))
    cpu = torch.device("cpu")
    model = create_model(recipe.model.name, **recipe.model.overrides)
    one, two = (memory_needed(model, (3, 20, 24), n) for n in (1, 2))
    weights = 4 * sum(p.numel() for p in model.parameters())
    features = 4 * 64 * 9 * 11  # of the first convolution
    assert one - (two - one) == 5 * weights
    assert two - one >= 2 * features
    assert memory_warning(recipe, cpu, 100 * two) is None
    enough = int((5 * weights + 1.5 * (two - one)) / 0.8)
    said = memory_warning(recipe, cpu, enough)
    assert said.endswith("batch=1 would fit")
    assert "make images smaller" in str(memory_warning(recipe, cpu, 1000))


def full_step(room: int, world: int = 1, *overrides: str) -> tuple[TrainStep, list[int]]:
    """A step that finds no memory for more than `room` examples at once, and the batches that it was tried with."""
    step, _ = small_step("augment.shift=0", *overrides)
    step.workers, advance, tried = Workers(torch.device("cpu"), 0, world), step.advance, []

    def full(index: torch.Tensor, noise: torch.Tensor) -> None:
        tried.append(len(index))
        if len(index) // step.recipe.train.accumulate > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")
        advance(index, noise)

    step.advance = full  # type: ignore[method-assign]
    return step, tried


def take(step: TrainStep, count: int) -> Any:
    index, noise = torch.arange(count), torch.zeros(count, 0)
    with batch_that_fits(step, index, noise):
        step.advance(index, noise)


@pytest.mark.parametrize(
    ("step", "count", "tried", "message"),
    [
        ((5,), 24, [24, 12, 6, 3], "batch=3 fits, or accumulate=8 takes 24 in parts as small"),
        ((2, 1, "accumulate=4"), 16, [16, 8], "batch=8 fits, or accumulate=8 takes 16 in parts"),
        ((0,), 16, [16, 8, 4, 2, 1], "try a smaller one"),
        ((8, 2), 16, [16], "try a smaller one"),  # the other process would have to try along
    ],
)
def test_the_batch_that_fits_is_found_by_trying(step: Any, count: int, tried: list[int], message: str) -> None:
    full, batches = full_step(*step)
    with pytest.raises(OutOfMemory) as raised:
        take(full, count)
    assert batches == tried
    assert f"train.batch: {count} does not fit in the memory of cpu" in str(raised.value)
    assert message in str(raised.value)
    assert str(raised.value).endswith("[CUDA out of memory. Tried to allocate 2.00 GiB.]")


def test_other_errors_pass_through() -> None:
    step, _ = full_step(8)
    take(step, 4)  # what fits goes through
    with pytest.raises(ValueError, match="something else"), batch_that_fits(step, torch.arange(2), torch.ones(2)):
        raise ValueError("something else")
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(ValueError("out of memory"))


PAGES = """
import resource, torch
from flashcaps.training.memory import keep_freed_memory
def least():
    return min(faults() for _ in range(5))  # the heap grows now and then
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(3 << 22)  # 48 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(least()), keep_freed_memory(), print(least())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_kept() -> None:
    """A process of its own: it is never told otherwise again."""
    said = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    returned, kept = map(int, said.stdout.split())
    assert kept < 100 < 5000 < returned  # of 12,288 pages
