"""The first convolution as a matrix product, in Triton's interpreter where there is no GPU, against torch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flashcaps.kernels.common.stem import ImageConv2d, convolve_image, image_product

from ...conftest import TOLERANCE, assert_near
from ..operator_checks import assert_as_in_float64, opcheck

CASES = [  # (B, C, H, W), channels, kernel, stride, padding
    ((2, 1, 11, 12), 5, 9, 1, 0),
    ((1, 3, 7, 6), 4, 3, 2, 1),
    ((3, 2, 5, 5), 3, 5, 1, 2),
    ((1, 1, 8, 9), 2, 7, 2, 0),
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("shape", "channels", "kernel", "stride", "padding"), CASES)
def test_same_as_a_convolution(
    shape: tuple[int, ...], channels: int, kernel: int, stride: int, padding: int, biased: bool, last: bool
) -> None:
    x = torch.randn(*shape).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    weight = torch.randn(channels, shape[1], kernel, kernel, requires_grad=True)
    bias = torch.randn(channels, requires_grad=True) if biased else None
    y = assert_as_in_float64(lambda w, b: convolve_image(x, w, b, stride, padding),
                             lambda w, b: F.conv2d(x.double(), w, b, stride, padding), weight, bias)  # fmt: skip
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_under_autocast() -> None:
    x, weight, bias = torch.rand(2, 1, 10, 10), torch.randn(3, 1, 9, 9), torch.randn(3)
    with torch.autocast("cpu", torch.bfloat16):
        y = convolve_image(x, weight, bias, 1, 0)
    assert y.dtype == torch.bfloat16
    assert_near(y, F.conv2d(x.double(), weight.double(), bias.double()), TOLERANCE[torch.bfloat16].output)


def test_operator_is_registered_right() -> None:
    weight, bias = torch.randn(5, 3, 3, 3, requires_grad=True), torch.randn(5, requires_grad=True)
    for given in (bias, None):
        opcheck(image_product, torch.randn(2, 3, 6, 5), weight, given, 2, 1, torch.float32)


def test_changed_in_place_without_copies() -> None:
    y = convolve_image(torch.rand(2, 1, 10, 11), torch.randn(3, 1, 9, 9, requires_grad=True), None, 1, 0)
    assert not y._is_view()
    assert "Copy" not in type(y.relu_().grad_fn).__name__


def test_is_a_convolution_elsewhere() -> None:
    """The same parameters, the same numbers: on the CPU torch's own operator."""
    torch.manual_seed(1)
    ours = ImageConv2d(1, 4, 9)
    theirs = nn.Conv2d(1, 4, 9)
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(2, 1, 12, 12)
    assert torch.equal(ours(x), theirs(x))


def test_which_convolutions_are_products() -> None:
    image = torch.rand(1, 1, 12, 12)
    assert ImageConv2d(1, 4, 9).takes(image)
    assert not ImageConv2d(1, 4, 3).takes(image)
    assert not ImageConv2d(8, 4, 9).takes(torch.rand(1, 8, 12, 12))
    assert not ImageConv2d(1, 4, 9, dilation=2).takes(image)
    assert not ImageConv2d(1, 4, 9).takes(image.bfloat16())
    assert not ImageConv2d(1, 4, 9).takes(image[0])
    assert not ImageConv2d(1, 4, 9).takes(image.clone().requires_grad_())
    with torch.autocast("cpu", torch.bfloat16):
        assert ImageConv2d(1, 4, 9).takes(image.bfloat16())
