"""`attend` of wide poses, interpreted, and on a GPU at real shapes, against explicit votes in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashcaps import ConvCapsules, DenseCapsules
from flashcaps.kernels.attend.plan import wide
from flashcaps.kernels.attend.triton import TritonAttend, supported
from flashcaps.kernels.common import formed
from flashcaps.kernels.votes import Votes

from ...layer_cases import assert_same, run_layer
from ..capture import assert_right_when_replayed
from ..poison import poison_memory
from .steps import (
    GIVEN,
    assert_close,
    assert_closed,
    assert_detached,
    draw,
    errors,
    fused,
    opcheck_step,
    with_gradients,
)

# b, g, j, c, d, h: too many columns in, in rows of two, columns out, rows
WIDE = [(3, 4, 3, 1, 40, 5), (2, 3, 2, 2, 33, 3), (2, 3, 3, 1, 3, 70), (2, 3, 2, 17, 2, 2)]


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    poison_memory(monkeypatch, "empty")


@pytest.mark.parametrize("size", [1, 1 << 23], ids=["a child at a time", "at once"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_output_and_gradients(shape: tuple[int, ...], given: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formed, "SIZE", size)
    monkeypatch.setattr(formed, "FEW", 1)
    drawn = draw(shape, given, torch.float32)
    assert wide(Votes(*drawn[:2]))
    assert_close(drawn)


@pytest.mark.parametrize("given", GIVEN)
def test_leaky(given: str) -> None:
    assert_close(draw(WIDE[0], given, torch.float32), leaky=True)


@pytest.mark.parametrize("given", ["nothing", "both"])
def test_fp16(given: str) -> None:
    assert_close(draw(WIDE[1], given, torch.float16))


@pytest.mark.parametrize("given", ["query", "both"])
def test_detached_agreement(given: str) -> None:
    assert_detached(WIDE[1], given)


def test_steep_couplings_and_a_parent_that_is_closed() -> None:
    assert_close(draw(WIDE[0], "query", torch.float32, scale=300.0), factor=100.0)
    assert_closed(WIDE[0])


@pytest.mark.parametrize("given", ["query", "both"])
def test_opcheck(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    opcheck_step(draw(WIDE[0], given, torch.float32))


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
    assert_same_as_reference(DenseCapsules, (2, 4, 40), dict(**sizes, **options))


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3]], ids=str)
def test_convolutional_layers(options: dict[str, Any]) -> None:
    """Their patches are gathered: kernels that leave children in the image hold poses in registers."""
    sizes = dict(in_types=1, in_dim=(1, 34), out_types=2, out_dim=(1, 5), kernel=2, stride=1)
    assert_same_as_reference(ConvCapsules, (2, 1, 3, 3, 34), dict(**sizes, **options))


def assert_same_as_reference(kind: type, shape: tuple[int, ...], arguments: dict[str, Any]) -> None:
    layer = kind(backend="triton", **arguments)
    exact = kind(backend="reference", **arguments).double()
    exact.load_state_dict(layer.state_dict())
    u = torch.randn(shape)
    activation = torch.rand(shape[:-1]) if arguments.get("activation") else None
    double = None if activation is None else activation.double()
    assert_same(run_layer(layer, u, activation), run_layer(exact, u.double(), double), torch.float32)


def test_parents_that_no_program_can_hold_are_refused() -> None:
    votes = Votes(torch.randn(1, 1, 1, 1, 33), torch.randn(600, 33, 1, 16))
    assert "at most" in str(supported(votes))
    with pytest.raises(ValueError, match="use the matrix form"):
        TritonAttend(votes)


REAL = {"6 x 6 places": (1161, 144, 16, 1, 64, 64), "dense": (128, 576, 10, 1, 64, 64), "rows": (64, 129, 10, 20, 8, 8)}


@pytest.mark.gpu
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("shape", REAL.values(), ids=REAL)
def test_real_shapes(shape: tuple[int, ...], given: str) -> None:
    before = torch.get_float32_matmul_precision()
    for precision, near in (("highest", 2e-5), ("high", 3e-3)):
        torch.set_float32_matmul_precision(precision)
        assert max(errors(draw(shape, given, torch.float32, "cuda"), False)) < near
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_replays_and_repeats_bit_for_bit() -> None:
    drawn = draw((260, 144, 16, 1, 64, 64), "both", torch.float32, "cuda")
    grad = torch.randn(260, 16, 64, device="cuda")
    assert_right_when_replayed(lambda: with_gradients(fused, drawn, grad, False), drawn[0])
