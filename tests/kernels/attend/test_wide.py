"""Steps on formed votes: `attend` of wide poses, and the spread of attended votes; interpreted, and on a GPU at real
shapes, against explicit votes in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps import ConvCapsules, DenseCapsules
from flashcaps.kernels.attend.plan import wide
from flashcaps.kernels.attend.triton import TritonAttend, supported
from flashcaps.kernels.attend.wide import variance_of_attended
from flashcaps.kernels.common import formed
from flashcaps.kernels.votes import Votes
from flashcaps.routing.math import weighted_moments

from ..operator_checks import assert_right_when_replayed, poison_memory
from ..twins import assert_same_as_reference
from . import steps
from .steps import GIVEN, SHAPES, WIDE, assert_close, draw, errors_of

MANY = [shape for shape in SHAPES if shape[1] > 1]  # of one vote alone the spread is nothing but eps
EPS = 1e-8
Pair = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch, "empty")


@pytest.fixture(params=[1, 1 << 23], ids=["a child at a time", "at once"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formed, "SIZE", request.param)
    monkeypatch.setattr(formed, "FEW", 1)


@pytest.fixture(params=[("highest", 2e-5), ("high", 3e-3)], ids=["exact", "tf32"])
def near(request: pytest.FixtureRequest) -> float:
    """How far numbers of a GPU may be from exact ones, at a precision of its products."""
    torch.set_float32_matmul_precision(request.param[0])
    return request.param[1]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_output_and_gradients(shape: tuple[int, ...], given: str) -> None:
    drawn = draw(shape, given, torch.float32)
    assert wide(Votes(*drawn[:2]))
    assert_close(drawn)


OPTIONS = [
    dict(routing="dynamic", iterations=3),
    dict(routing="dynamic", iterations=3, leaky=True),
    dict(routing="dynamic", iterations=3, detach=True),
    dict(routing="attention", iterations=2),
    dict(routing="attention", iterations=2, activation=True),
    dict(routing="attention", iterations=2, norm=False, initial="learned"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_dense_layers(options: dict[str, Any]) -> None:
    sizes = dict(in_capsules=4, in_dim=40, out_capsules=3, out_dim=6)
    assert_same_as_reference(DenseCapsules, (2, 4, 40), sizes | options, gated="activation" in options)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3]], ids=str)
def test_convolutional_layers(options: dict[str, Any]) -> None:
    """Their patches are gathered: kernels that leave children in the image hold poses in registers."""
    sizes = dict(in_types=1, in_dim=(1, 34), out_types=2, out_dim=(1, 5), kernel=2, stride=1)
    assert_same_as_reference(ConvCapsules, (2, 1, 3, 3, 34), sizes | options)


def test_parents_that_no_program_can_hold_are_refused() -> None:
    votes = Votes(torch.randn(1, 1, 1, 1, 33), torch.randn(600, 33, 1, 16))
    assert "at most" in str(supported(votes))
    with pytest.raises(ValueError, match="use the matrix form"):
        TritonAttend(votes)


# ---- the spread of attended votes


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
    return errors_of(fused, explicit, (u, weight, query))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("given", ["nothing", "query"])
@pytest.mark.parametrize("shape", MANY, ids=str)
def test_spread_and_gradients(shape: tuple[int, ...], given: str) -> None:
    assert max(errors(shape, given, torch.float32)) < 2e-5


def test_spread_of_half_precision_rounds_inputs_alone() -> None:
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
def test_opcheck_of_spread(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    u, weight, query, _ = draw((3, 4, 2, 1, 3, 4), given, torch.float32)
    torch.library.opcheck(torch.ops.flashcaps.spread.default, (u, weight, query))
    n, mean, m = (x.detach() for x in torch.ops.flashcaps.spread.default(u, weight, query))
    inputs = [None if x is None else x.detach() for x in (u, weight, query)]
    torch.library.opcheck(torch.ops.flashcaps.spread_backward.default, (n, m, *inputs, mean))


# ---- on a GPU: b, g, j, c, d, h

REAL = {"6 x 6 places": (1161, 144, 16, 1, 64, 64), "dense": (128, 576, 10, 1, 64, 64), "rows": (64, 129, 10, 20, 8, 8)}
SPREAD = {"7 x 7 places": (6272, 72, 32, 4, 4, 4), "dense": (128, 800, 10, 4, 4, 4), "6 x 6": (700, 67, 32, 6, 6, 6),
          "vectors": (131, 129, 16, 1, 64, 64)}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("shape", REAL.values(), ids=REAL)
def test_real_shapes(shape: tuple[int, ...], given: str, near: float) -> None:
    assert max(steps.errors(draw(shape, given, torch.float32, "cuda"), False)) < near


@pytest.mark.gpu
@pytest.mark.parametrize("given", ["nothing", "query"])
@pytest.mark.parametrize("shape", SPREAD.values(), ids=SPREAD)
def test_real_shapes_of_spread(shape: tuple[int, ...], given: str, near: float) -> None:
    assert max(errors(shape, given, torch.float32, "cuda")) < near


@pytest.mark.gpu
def test_replays_and_repeats_bit_for_bit() -> None:
    drawn = draw((260, 144, 16, 1, 64, 64), "both", torch.float32, "cuda")
    grad = torch.randn(260, 16, 64, device="cuda")
    assert_right_when_replayed(lambda: steps.with_gradients(steps.fused, drawn, grad, False), drawn[0])
    u, weight, query, _ = draw((980, 72, 32, 4, 4, 4), "query", torch.float32, "cuda")
    grads = torch.randn(980, 32, device="cuda"), torch.randn(980, 32, 16, device="cuda")
    assert_right_when_replayed(lambda: with_gradients(fused, [u, weight, query], grads), u)
