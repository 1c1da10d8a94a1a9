"""The spread of attended votes, interpreted, and on a GPU at real shapes, against explicit votes in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashcaps.kernels.attend.variance import variance_of_attended
from flashcaps.kernels.common import formed
from flashcaps.kernels.votes import Votes
from flashcaps.routing.math import weighted_moments

from ..capture import assert_right_when_replayed
from ..poison import poison_memory
from .steps import SHAPES, draw, relative

EPS = 1e-8
Pair = tuple[Tensor, Tensor]


def explicit(u: Tensor, weight: Tensor, query: Tensor | None) -> Pair:
    v = Votes(u, weight).explicit()
    a = v.new_zeros(v.shape[:3]) if query is None else torch.einsum("bijd,bjd->bij", v, query)
    n, _, variance = weighted_moments(a.softmax(-1), v, EPS)
    return n, variance


def fused(u: Tensor, weight: Tensor, query: Tensor | None) -> Pair:
    return variance_of_attended(Votes(u, weight), query, EPS)


def with_gradients(function: Callable[..., Pair], drawn: list[Tensor | None], grads: Pair) -> list[Tensor]:
    out = function(*drawn)
    loss = sum((x * g).sum() for x, g in zip(out, grads, strict=True))
    return [*out, *torch.autograd.grad(loss, [x for x in drawn if x is not None])]  # type: ignore[arg-type]


def errors(shape: tuple[int, ...], given: str, dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """Of n, the variance, and the gradients of u, weight and query."""
    u, weight, query, _ = draw(shape, given, dtype, device, scale=3.0)
    b, _, j, c, _, h = shape
    grads = torch.randn(b, j, device=device), torch.randn(b, j, c * h, device=device)
    actual = with_gradients(fused, [u, weight, query], grads)
    double = [None if x is None else x.detach().double().requires_grad_() for x in (u, weight, query)]
    expected = with_gradients(explicit, double, grads)
    for x, given_x in zip(actual[2:], [x for x in (u, weight, query) if x is not None], strict=True):
        assert (x.dtype, x.shape) == (given_x.dtype, given_x.shape)
    return relative(actual, expected)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch, "empty")


MANY = [shape for shape in SHAPES if shape[1] > 1]  # of one vote alone the spread is nothing but eps


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("block", [1, 1 << 23], ids=["a child at a time", "at once"])
@pytest.mark.parametrize("given", ["nothing", "query"])
@pytest.mark.parametrize("shape", MANY, ids=str)
def test_agrees_with_explicit_votes(
    shape: tuple[int, ...], given: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formed, "SIZE", block)
    monkeypatch.setattr(formed, "FEW", 1)
    assert max(errors(shape, given, torch.float32)) < 2e-5


@pytest.mark.usefixtures("poisoned")
def test_half_precision_rounds_inputs_alone() -> None:
    assert max(errors((3, 5, 2, 2, 3, 3), "query", torch.float16)) < 5e-3


def test_a_small_spread_about_a_large_mean_does_not_cancel() -> None:
    """Expanded, sum r v^2 - n mean^2 would lose it: one part in 10^8."""
    u = 100 + 0.01 * torch.randn(2, 30, 1, 1, 3)
    weight = torch.eye(3)[None, :, None].expand(4, 3, 30, 3).contiguous()
    _, variance = fused(u, weight, None)
    _, expected = explicit(u.double(), weight.double(), None)
    torch.testing.assert_close(variance.double(), expected, rtol=1e-3, atol=0)


def test_a_parent_that_nobody_attends_to_has_numbers() -> None:
    u, weight = torch.ones(1, 4, 1, 1, 2).requires_grad_(), torch.ones(2, 2, 4, 3).requires_grad_()
    query = torch.tensor([0.0, -1e4]).view(1, 2, 1).repeat(1, 1, 3).requires_grad_()
    n, variance = fused(u, weight, query)
    assert n.tolist() == [[4.0, 0.0]]
    for x in (variance, *torch.autograd.grad(variance.log().sum(), [u, weight, query])):
        assert x.isfinite().all()


@pytest.mark.parametrize("given", ["nothing", "query"])
def test_opcheck(given: str) -> None:
    u, weight, query, _ = draw((3, 4, 2, 1, 3, 4), given, torch.float32)
    torch.library.opcheck(torch.ops.flashcaps.spread.default, (u, weight, query))
    n, mean, m = (x.detach() for x in torch.ops.flashcaps.spread.default(u, weight, query))
    inputs = [None if x is None else x.detach() for x in (u, weight, query)]
    torch.library.opcheck(torch.ops.flashcaps.spread_backward.default, (n, m, *inputs, mean))


# b, g, j, c, d, h
REAL = {"7 x 7 places": (6272, 72, 32, 4, 4, 4), "dense": (128, 800, 10, 4, 4, 4), "6 x 6": (700, 67, 32, 6, 6, 6),
        "vectors": (131, 129, 16, 1, 64, 64)}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("given", ["nothing", "query"])
@pytest.mark.parametrize("shape", REAL.values(), ids=REAL)
def test_real_shapes(shape: tuple[int, ...], given: str) -> None:
    before = torch.get_float32_matmul_precision()
    for precision, near in (("highest", 2e-5), ("high", 3e-3)):
        torch.set_float32_matmul_precision(precision)
        assert max(errors(shape, given, torch.float32, "cuda")) < near
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_replays_and_repeats_bit_for_bit() -> None:
    u, weight, query, _ = draw((980, 72, 32, 4, 4, 4), "query", torch.float32, "cuda")
    grads = torch.randn(980, 32, device="cuda"), torch.randn(980, 32, 16, device="cuda")
    assert_right_when_replayed(lambda: with_gradients(fused, [u, weight, query], grads), u)
