"""The promise: a fused layer takes at most twice the bytes of inputs, outputs, weights and their gradients."""

import pytest
import torch

from benchmarks import memory
from flashcaps.routing import ROUTING


def shares(names: list[str]) -> dict[str, float]:
    """Bytes at the peak of each layer's step, as a share of its own."""
    known = memory.layers()
    peaks = {name: memory.peak(known[name]) for name in names}
    return {name: round(most / own, 3) for name, (most, own) in peaks.items()}


@pytest.mark.parametrize("routing", sorted(ROUTING))
def test_within_twice_its_bytes_at_every_size_of_the_sweep(routing: str) -> None:
    names = [name for name in memory.layers() if name.startswith(routing) and not name.endswith("_imagenet")]
    assert len(names) > 15
    assert {name: share for name, share in shares(names).items() if share > 2} == {}


@pytest.mark.slow  # what torch computes around the kernels runs on the CPU, over gigabytes of weights
def test_within_twice_its_bytes_at_imagenets_size() -> None:
    names = [name for name in memory.layers() if name.endswith("_imagenet")]
    assert len(names) == 3
    assert {name: share for name, share in shares(names).items() if share > 2} == {}


def test_allocations_are_counted_as_a_device_rounds_them() -> None:
    """1 + 513 bytes are three blocks at a time; freed ones do not count again."""

    class Held(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for _ in range(3):
                a, b = torch.empty(1, dtype=torch.uint8), torch.empty(513, dtype=torch.uint8)
                del a, b
            return (-x,)

    class Work(memory.Workload):
        def build(self, backend: str) -> torch.nn.Module:
            return Held()

    most, own = memory.peak(Work("held", "held", 1, (1024,)))
    assert own == 2 * (4096 + 4096)
    # the input and the gradient of its output; of the step: blocks, the output, the input's gradient
    assert most == 4096 + 4096 + max(3 * 512, 4096 + 4096)
