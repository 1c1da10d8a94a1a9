"""Kernels in a CUDA graph."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flashcaps.training.step import record, warm_up


def assert_right_when_replayed(step: Callable[[], Sequence[Tensor]], u: Tensor) -> None:
    """Captured once, `step` has the same bits on other numbers in u as a call on them: nothing waits for the host, and
    nothing is fixed at capture.
    """
    warm_up(step)
    graph, captured = record(step)
    with torch.no_grad():
        u.copy_(torch.randn_like(u))
    graph.replay()
    for x, y in zip(captured, step(), strict=True):
        assert torch.equal(x, y)
