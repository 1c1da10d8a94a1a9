"""What surrounds the routing kernels, compiled for a GPU, at the sizes of real networks, against torch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flashcaps.functional import squash
from flashcaps.kernels import votes
from flashcaps.kernels.common.norm import layer_norm_poses, squash_poses
from flashcaps.kernels.common.patches import patches
from flashcaps.kernels.common.rows import DTYPES
from flashcaps.kernels.common.stem import convolve_image
from flashcaps.nn.losses import margin_loss

from ...conftest import TOLERANCE, assert_near
from ..operator_checks import assert_as_in_float64
from .test_norm import channels_first, channels_last, contiguous, gaps

pytestmark = pytest.mark.gpu

POSES = [
    (contiguous, (6272, 32, 16)),
    (contiguous, (1000, 36)),
    (contiguous, (77, 5, 128)),
    (channels_first, (16, 32, 6, 6, 8)),
    (channels_last, (16, 32, 16, 16, 16)),
    (gaps, (33, 7, 9)),
]


def on_gpu(layout: Callable[..., Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A leaf on the GPU in the layout of the one on the CPU."""
    x = layout(*shape)
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype, device="cuda").copy_(x).requires_grad_()


def assert_same(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *leaves: Tensor) -> None:
    """Outputs and gradients against torch in float64, and the same bits twice."""
    g = torch.randn_like(assert_as_in_float64(ours, theirs, *leaves))
    once, again = (torch.autograd.grad(ours(*leaves), leaves, g) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("layout", "shape"), POSES)
def test_layer_norm(layout: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    d = shape[-1]
    w, b = (torch.randn(d, device="cuda").to(dtype).requires_grad_() for _ in range(2))
    assert_same(layer_norm_poses, lambda x, w, b: F.layer_norm(x, (d,), w, b), on_gpu(layout, shape, dtype), w, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("layout", "shape"), POSES)
def test_squash(layout: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = on_gpu(layout, shape, dtype)
    assert_same(lambda x: squash_poses(x, 0.5, 0.1), lambda x: squash(0.5 * x + 0.1), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (3, 1), (1, 1), (5, 3)])
@pytest.mark.parametrize("layout", [contiguous, channels_first, channels_last, gaps])
def test_patches(layout: Any, kernel: int, stride: int, dtype: torch.dtype) -> None:
    u = on_gpu(layout, (4, 33, 14, 16, 16), dtype)
    assert_same(lambda u: patches(u, kernel, stride), lambda u: votes.patches(u, kernel, stride), u)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_first_convolution(dtype: torch.dtype) -> None:
    x = torch.rand(16, 1, 28, 28, device="cuda")
    weight, bias = torch.randn(256, 1, 9, 9, device="cuda") / 9, torch.randn(256, device="cuda")
    leaves = [weight.requires_grad_(), bias.requires_grad_()]
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        convolved = convolve_image(x, *leaves, 1, 0)
    theirs = partial(F.conv2d, x.double())
    assert assert_as_in_float64(lambda *_: convolved, theirs, *leaves, dtype=dtype).dtype == dtype


@pytest.mark.parametrize("hot", [False, True])
def test_margin_loss(hot: bool) -> None:
    v = torch.rand(128, 10, device="cuda", requires_grad=True)
    targets = torch.randint(10, (128,), device="cuda")
    exact = v.detach().cpu().double().requires_grad_()
    shown = F.one_hot(targets, 10) if hot else targets
    loss, expected = margin_loss(v, shown), margin_loss(exact, shown.cpu())
    assert_near(loss.cpu(), expected)
    (g,), (e,) = torch.autograd.grad(loss, v), torch.autograd.grad(expected, exact)
    assert_near(g.cpu(), e, TOLERANCE[torch.float32].gradient)
