"""`races` finds what it is for: each fault planted in a small kernel, and in a step of a real layer."""

from collections.abc import Iterator
from unittest import mock

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from flashcaps import DenseCapsules  # noqa: E402
from flashcaps.kernels.common.order_triton import arrive, wait_for  # noqa: E402


@triton.jit
def halves(x, y, counter, fault: tl.constexpr):
    """Two programs store a half each; the third adds them up."""
    p = tl.program_id(0)
    late: tl.constexpr = fault == "a program waits for a later one"
    if (p == 1 if late else p == 2):
        if fault != "nobody waits":
            wait_for(counter, 1 if fault == "one is not waited for" else 2)
        tl.store(y, tl.load(x) + tl.load(x + 1))
    else:
        if fault == "two programs store to one place":
            tl.store(x, 1.0)
        tl.store(x + p // (2 if late else 1), 1.0)
        if fault == "a program reads what it stored":
            tl.store(x + p, tl.load(x + p) + 1)
        if fault == "no barrier before it arrives":
            tl.atomic_add(counter, 1, sem="release")
        else:
            arrive(counter)


FAULTS = {
    "none": "", "nobody waits": "in no order", "one is not waited for": "waits for 1 of 2",
    "a program waits for a later one": "starts later", "two programs store to one place": "in no order",
    "a program reads what it stored": "without a barrier", "no barrier before it arrives": "in no order",
    "the counter is not 0": "a counter is 1 after 0",
}  # fmt: skip


@pytest.fixture
def found(no_races: list[str]) -> Iterator[list[str]]:
    """The faults so far; none are left at the end, where `no_races` looks."""
    yield no_races
    no_races.clear()


@pytest.mark.parametrize(("fault", "said"), FAULTS.items(), ids=FAULTS)
def test_planted_faults(found: list[str], fault: str, said: str) -> None:
    x, counter = torch.zeros(3), torch.full((1,), int(fault == "the counter is not 0"), dtype=torch.int32)
    halves[(3,)](x[:2], x[2:], counter, fault)
    assert any(said in line for line in found) if said else not found


@pytest.mark.parametrize(("routing", "kernel"), [("dynamic", "attend_forward"), ("em", "moments")])
def test_layers_that_arrive_without_a_barrier(found: list[str], routing: str, kernel: str) -> None:
    layer = DenseCapsules(routing, in_capsules=40, in_dim=4, out_capsules=5, out_dim=4, backend="triton")
    with mock.patch.object(tl, "debug_barrier", return_value=None):
        layer(torch.randn(3, 40, 4))
    assert any(line.startswith(kernel) and "in no order" in line for line in found)
