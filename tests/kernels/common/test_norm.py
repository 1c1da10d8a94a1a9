"""LayerNorm and squash over short rows, in Triton's interpreter where there is no GPU, against torch in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flashcaps.functional import squash
from flashcaps.kernels.common.norm import layer_norm_poses, norm_rows, squash_poses, squash_rows
from flashcaps.kernels.common.rows import Rows, fused, rows_of

from ...conftest import assert_near
from ..operator_checks import assert_as_in_float64, opcheck, poison_memory

EPS = 1e-5
RANDOM = torch.Generator().manual_seed(1)  # inputs are drawn when tests are collected, always the same


def contiguous(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RANDOM)


def channels_first(b: int, t: int, h: int, w: int, d: int) -> Tensor:
    """Poses as primary capsules leave them."""
    return contiguous(b, t * d, h, w).view(b, t, d, h, w).permute(0, 1, 3, 4, 2)


def channels_last(b: int, t: int, h: int, w: int, d: int) -> Tensor:
    """And where their features are channels-last."""
    x = contiguous(b, t * d, h, w).contiguous(memory_format=torch.channels_last)
    return x.view(b, t, d, h, w).permute(0, 1, 3, 4, 2)


def gaps(*shape: int) -> Tensor:
    return contiguous(*shape[:-1], 2 * shape[-1])[..., ::2]


def scattered(*shape: int) -> Tensor:
    """Axes of rows in an order that no three strides describe."""
    return contiguous(*shape[:-1][::-1], shape[-1]).permute(*range(len(shape) - 2, -1, -1), len(shape) - 1)


INPUTS = [
    contiguous(3, 5, 4),
    contiguous(7, 16),
    contiguous(1, 1),
    contiguous(130, 3, 8),
    contiguous(2, 128),
    channels_first(2, 3, 2, 5, 7),
    channels_last(2, 3, 2, 5, 4),
    channels_last(1, 3, 1, 1, 8),
    gaps(3, 4, 5),
    scattered(2, 3, 2, 3, 4),
    contiguous(2, 1, 3)[:, :, :1].expand(2, 4, 3),  # rows of equal numbers
]


def shapes(x: Any) -> str:
    return "x".join(map(str, x.shape)) + "".join(f"_{s}" for s in x.stride()) if isinstance(x, Tensor) else str(x)


def strided(x: Tensor) -> Tensor:
    """A leaf in the same layout."""
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) if 0 not in x.stride() else x.clone()
    return y.requires_grad_()


def assert_near_layer_norm(x: Tensor, *affine: Tensor | None) -> Tensor:
    theirs = lambda x, *affine: F.layer_norm(x, x.shape[-1:], *affine, EPS)  # noqa: E731
    return assert_as_in_float64(lambda x, *affine: norm_rows(x, *affine, EPS, x.dtype), theirs, x, *affine)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch, "empty", "empty_like")


@pytest.mark.parametrize(
    ("affine", "dtype"), [*((a, torch.float32) for a in ("both", "scale", "shift", "none")), ("both", torch.float16)]
)
@pytest.mark.parametrize("x", INPUTS, ids=shapes)
def test_layer_norm(x: Tensor, affine: str, dtype: torch.dtype) -> None:
    d = x.shape[-1]
    weight = torch.randn(d, dtype=dtype, requires_grad=True) if affine in ("both", "scale") else None
    bias = torch.randn(d, dtype=dtype, requires_grad=True) if affine in ("both", "shift") else None
    assert assert_near_layer_norm(strided(x.to(dtype)), weight, bias).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("x", INPUTS, ids=shapes)
def test_squash(x: Tensor, dtype: torch.dtype) -> None:
    ours, theirs = lambda x: squash_rows(x, 0.5, 0.1, dtype), lambda x: squash(0.5 * x + 0.1)
    assert assert_as_in_float64(ours, theirs, strided(x.to(dtype))).is_contiguous()


def test_sums_of_several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that walk through more than one tile, and whose sums are added."""
    monkeypatch.setattr("flashcaps.kernels.common.norm.PROGRAMS", 2)
    x, w, b = (torch.randn(*n, requires_grad=True) for n in ((5, 200, 16), (16,), (16,)))
    assert rows_of(x)[1].tile(16)[0] > 4
    assert_near_layer_norm(x, w, b)


def test_squash_at_zero() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    y = squash_rows(x, 1.0, 0.0, torch.float32)
    assert_near(y, 0.0, 0.0)
    assert_near(torch.autograd.grad(y.sum(), x)[0], 0.0, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [channels_first, channels_last])
def test_gradients_lie_where_poses_do(make: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Poses of half precision are written in single, as autocast wants it, and have gradients in their own dtype."""
    x = make(2, 3, 2, 5, 4).to(dtype).requires_grad_()
    for y in (squash_rows(x, 1.0, 0.0, torch.float32), norm_rows(x, None, None, EPS, torch.float32)):
        assert y.is_contiguous()
        assert y.dtype == torch.float32
        (g,) = torch.autograd.grad(y.square().sum(), x)
        assert (g.stride(), g.dtype) == (x.stride(), dtype)


@pytest.mark.parametrize("x", [INPUTS[0], INPUTS[5], INPUTS[9]], ids=shapes)
def test_operators_are_registered_right(x: Tensor) -> None:
    d = x.shape[-1]
    w, b = (torch.randn(d, requires_grad=True) for _ in range(2))
    x = strided(x)
    opcheck(norm_rows, x, w, b, EPS, torch.float32)
    opcheck(norm_rows, x, None, b, EPS, torch.float32)
    opcheck(squash_rows, x, 1.0, 0.5, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_on_the_cpu_as_torch(dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(*s).to(dtype) for s in ((3, 5, 4), (4,), (4,)))
    assert not fused(x)
    assert torch.equal(layer_norm_poses(x, w, b), F.layer_norm(x, (4,), w, b))
    assert torch.equal(squash_poses(x), squash(x))
    assert torch.equal(squash_poses(x, 0.5, 0.25), squash(x * 0.5 + 0.25))


def test_poses_are_single_precision_under_autocast() -> None:
    x, w = torch.randn(3, 4).bfloat16(), torch.ones(4)
    with torch.autocast("cpu", torch.bfloat16):
        assert squash_poses(x).dtype == torch.float32
        assert layer_norm_poses(x, w, w).dtype == torch.float32


def test_rows_of_any_layout() -> None:
    assert rows_of(torch.empty(6, 5, 4))[1] == Rows(1, 1, 30, 0, 0, 4, 1)
    first, last = channels_first(2, 3, 4, 5, 8), channels_last(2, 3, 4, 5, 8)
    assert rows_of(first)[1] == Rows(1, 6, 20, 0, 160, 1, 20)
    assert rows_of(last)[1] == Rows(2, 3, 20, 480, 8, 24, 1)
    assert rows_of(last)[0] is last
    x = scattered(2, 3, 2, 3, 2)
    assert rows_of(x)[1] == Rows(1, 1, 36, 0, 0, 2, 1)
    assert torch.equal(rows_of(x)[0], x)
