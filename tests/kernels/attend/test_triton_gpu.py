"""The Triton `attend` on a CUDA device at real shapes, against explicit votes in float64."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from flashcaps.kernels.attend.triton import dynamic_poses
from flashcaps.kernels.votes import Votes

from ..operator_checks import assert_right_when_replayed, poison_memory
from . import test_triton_attention as attention
from .steps import GIVEN, SHAPES, draw, dynamic_errors, errors, fused, with_gradients

pytestmark = pytest.mark.gpu

# b, g, j, c, d, h
REAL = {
    "capsnet": (128, 1152, 10, 1, 8, 16),
    "cifar100": (128, 515, 100, 1, 8, 16),
    "attention 4x4": (980, 288, 32, 4, 4, 4),
    "attention 4x4, many rows": (1029, 288, 32, 4, 4, 4),
    "6x6, many rows": (700, 131, 11, 6, 6, 6),
    "6x6": (131, 67, 11, 6, 6, 6),
    "8x8": (64, 129, 10, 8, 8, 8),
    "vote bias": (37, 67, 5, 1, 9, 16),
}
ATTENTION = {
    "dense": attention.Case(None, (64, 131), (1, 1), (10, 4, 4, 4)),
    "stride 2": attention.Case(attention.contiguous, (8, 32, 16, 16), (3, 2), (32, 4, 4, 4)),
    "of a layer below": attention.Case(attention.by_types, (43, 32, 7, 7), (3, 1), (32, 4, 4, 4)),
    "6x6": attention.Case(attention.contiguous, (5, 11, 7, 7), (3, 2), (7, 6, 6, 6)),
    "vectors": attention.Case(attention.contiguous, (4, 16, 6, 6), (3, 1), (8, 1, 8, 16)),
}
TOLERANCE = {"exact": 1e-5, "tf32": 2e-3, "bf16": 2e-2, "fp16": 4e-3}
DTYPE = {"exact": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def with_numbers(cases: Iterable[Any]) -> pytest.MarkDecorator:
    """Each case exact, in tf32, and in bf16 or fp16 in turn, whose kernels differ in how they load and store alone."""
    pairs = [(case, x) for k, case in enumerate(cases) for x in ("exact", "tf32", ("bf16", "fp16")[k % 2])]
    return pytest.mark.parametrize(("case", "numbers"), pairs, indirect=["numbers"])


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    """How numbers are kept and multiplied."""
    torch.set_float32_matmul_precision("highest" if request.param == "exact" else "high")
    return request.param


@pytest.mark.parametrize("given", GIVEN)
@with_numbers([*REAL, *SHAPES])
def test_output_and_gradients(case: Any, given: str, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(REAL.get(case, case), given, DTYPE[numbers], "cuda")
    poison_memory(monkeypatch, "empty", "empty_strided")
    far = errors(drawn, leaky=False)
    assert max(far) < TOLERANCE[numbers], far


def test_same_bits() -> None:
    drawn = draw(REAL["capsnet"], "both", torch.float32, "cuda")
    grad = torch.randn(128, 10, 16, device="cuda")
    for x, y in zip(*(with_gradients(fused, drawn, grad, True) for _ in range(2)), strict=True):
        assert torch.equal(x, y)


def dynamic_step(shape: tuple[int, ...], given: str) -> tuple[Any, torch.Tensor]:
    """Output and gradients of dynamic routing on drawn numbers, as a function, and its poses."""
    u, weight, _, logits = draw(shape, given, torch.float32, "cuda")
    inputs = [x for x in (u, weight, logits) if x is not None]
    grad = torch.randn(u.shape[0], weight.shape[0], shape[3] * shape[5], device="cuda")

    def step() -> list[torch.Tensor]:
        out = dynamic_poses(Votes(u, weight), 3, logits)
        return [out, *torch.autograd.grad(out, inputs, grad)]

    return step, u


@pytest.mark.parametrize(("shape", "given"), [((16, 64, 10, 1, 8, 16), "logits"), (REAL["capsnet"], "nothing")])
def test_captured(shape: tuple[int, ...], given: str) -> None:
    """A graph's replay on new numbers equals a call on them."""
    assert_right_when_replayed(*dynamic_step(shape, given))


def test_two_streams() -> None:
    """Programs wait only for those of their own launch: two layers at once have the bits of one after the other."""
    steps = [dynamic_step(REAL[case], "nothing")[0] for case in ("capsnet", "cifar100")]
    expected = [step() for step in steps]
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in steps], {}
    for turn in range(20):
        with torch.cuda.stream(streams[turn % 2]):
            found[turn] = steps[turn % 2]()
    torch.cuda.synchronize()
    for turn, results in found.items():
        assert all(torch.equal(x, y) for x, y in zip(results, expected[turn % 2], strict=True))


@pytest.mark.parametrize("given", ["nothing", "both"])
@with_numbers(REAL)
def test_dynamic(case: str, given: str, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch, "empty", "empty_strided")
    far = dynamic_errors(REAL[case], given, DTYPE[numbers], "cuda")
    assert max(far) < 10 * TOLERANCE[numbers], far


@pytest.mark.parametrize(("given", "iterations"), [("nothing", 1), ("nothing", 3), ("pose", 2)])
@with_numbers(ATTENTION)
def test_attention(case: str, given: str, iterations: int, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = attention.draw(ATTENTION[case], given, DTYPE[numbers], "cuda")
    poison_memory(monkeypatch, "empty", "empty_strided")
    far = attention.attention_errors(drawn, ATTENTION[case], iterations)
    assert max(far) < 10 * TOLERANCE[numbers], far


def test_attention_captured_and_the_same_bits() -> None:
    case = ATTENTION["stride 2"]
    drawn = attention.draw(case, "nothing", torch.float32, "cuda")
    given = [x for x in drawn if x is not None]

    def step() -> list[torch.Tensor]:
        out = attention.fused(drawn, case, 2)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    assert_right_when_replayed(step, drawn.u)
