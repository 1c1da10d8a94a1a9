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

from ..conftest import TOLERANCE, assert_near

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


def assert_as_in_float64(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *given: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """Our output, which is theirs of the same numbers in float64, as is every gradient.

    dtype: whose tolerances count (default: that of the first tensor).
    """
    exact = [None if x is None else x.detach().double().requires_grad_() for x in given]
    y, expected = ours(*given), theirs(*exact)
    tolerance, g = TOLERANCE[dtype or given[0].dtype], torch.randn_like(y)
    assert_near(y, expected, tolerance.output, "output")
    leaves, wanted = ([x for x in tensors if x is not None] for tensors in (given, exact))
    grads = torch.autograd.grad(y, leaves, g), torch.autograd.grad(expected, wanted, g.double())
    for k, (x, a, e) in enumerate(zip(leaves, *grads, strict=True)):
        assert a.dtype == x.dtype
        assert_near(a, e, tolerance.gradient, f"gradient {k}")
    return y
