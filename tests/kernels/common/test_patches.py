"""Patches in one kernel, in Triton's interpreter where there is no GPU, against unfolded views."""

from typing import Any

import pytest
import torch

from flashcaps.kernels import votes
from flashcaps.kernels.common.patches import SlicedPatches, gather_patches, scatter_patches

from ...conftest import TOLERANCE, assert_near
from ..operator_checks import opcheck, poison_memory
from .test_norm import channels_first, channels_last, contiguous, gaps

CASES = [  # layout, (B, T, H, W, D), kernel, stride
    (contiguous, (2, 3, 5, 4, 3), 3, 1),
    (contiguous, (1, 2, 6, 7, 4), 3, 2),
    (channels_first, (2, 3, 4, 5, 2), 2, 2),
    (channels_last, (2, 3, 5, 6, 4), 3, 2),
    (channels_last, (1, 33, 3, 3, 1), 2, 1),
    (gaps, (1, 2, 4, 4, 3), 1, 3),
    (contiguous, (1, 1, 3, 4, 70), 3, 1),
    (contiguous, (1, 2, 7, 3, 2), 2, 3),
]


def names(x: Any) -> str:
    return x.__name__ if callable(x) else str(x)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch, "empty", "empty_strided")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("layout", "shape", "kernel", "stride"), CASES, ids=names)
@pytest.mark.parametrize("gather", [gather_patches, SlicedPatches.apply], ids=["kernel", "slices"])
def test_same_as_views(layout: Any, shape: tuple[int, ...], kernel: int, stride: int, dtype: Any, gather: Any) -> None:
    u = layout(*shape)
    u = torch.empty_strided(u.shape, u.stride(), dtype=dtype).copy_(u).requires_grad_()
    x, expected = gather(u, kernel, stride), votes.patches(u, kernel, stride)
    assert x.is_contiguous() or gather is not gather_patches
    assert torch.equal(x, expected)
    g = torch.randn(x.shape).to(dtype)
    (gu,), (ge,) = (torch.autograd.grad(y, u, g) for y in (x, expected))
    assert gu.dtype == dtype
    assert layout is gaps or gather is not gather_patches or gu.stride() == u.stride()
    assert_near(gu, ge, TOLERANCE[dtype].gradient)
    assert gather is gather_patches or torch.autograd.gradgradcheck(gather, (u.double(), kernel, stride))


@pytest.mark.parametrize(("layout", "shape", "kernel", "stride"), CASES[2:4], ids=names)
def test_operators_are_registered_right(layout: Any, shape: tuple[int, ...], kernel: int, stride: int) -> None:
    u = layout(*shape).requires_grad_()
    opcheck(gather_patches, u, kernel, stride)
    g = torch.randn_like(gather_patches(u, kernel, stride)).detach()
    torch.library.opcheck(scatter_patches.overload, (g, u.shape, u.stride(), kernel, stride), test_utils="test_schema")
