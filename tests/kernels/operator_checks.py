"""What every operator and kernel is asked: torch's own checks, memory that starts as NaN, and a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from flashcaps.kernels.common.rows import Parts, memory_for
from flashcaps.training.capture import on_side_stream, record

STATIC = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def opcheck(operator: Any, *arguments: Any) -> None:
    """Bytes between the tensors that share memory are compared, too, so they are 0."""

    def zeros_for(like: Tensor, parts: Parts) -> Tensor:
        return memory_for(like, parts).zero_()

    modules = "flashcaps.kernels.attend.triton", "flashcaps.kernels.fit.op"
    with mock.patch(f"{modules[0]}.memory_for", zeros_for), mock.patch(f"{modules[1]}.memory_for", zeros_for):
        torch.library.opcheck(getattr(operator, "overload", operator), arguments, test_utils=STATIC)


def poison_memory(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """torch.NAME fills what it makes, for each of the constructors `names`, and so do those of plans (bytes, too)."""
    own = [(torch._C._dynamo.guards, f"_empty_strided_{device}") for device in ("cpu", "cuda")]
    for module, name in (*own, *((torch, name) for name in names)):

        def poisoned(*args: Any, _make: Any = getattr(module, name), **options: Any) -> Tensor:
            x = _make(*args, **options)
            with _disable_current_modes():  # a plan that is recorded has no such line, and is poisoned as it runs
                if not x.is_meta and (x.is_floating_point() or x.dtype == torch.uint8):
                    x.fill_(float("nan") if x.is_floating_point() else 255)  # of which NaN is made, too
            return x

        monkeypatch.setattr(module, name, poisoned)


def assert_right_when_replayed(step: Callable[[], Sequence[Tensor]], u: Tensor) -> None:
    """Captured once, `step` has the same bits on other numbers in u as a call on them: nothing waits for the host, and
    nothing is fixed at capture.
    """
    on_side_stream(step)
    graph, captured = record(step)
    with torch.no_grad():
        u.copy_(torch.randn_like(u))
    graph.replay()
    for x, y in zip(captured, step(), strict=True):
        assert torch.equal(x, y)
