"""Weighted sums of even shares without votes, against explicit ones. `Attend`: kernels/twins.py."""

import pytest
import torch

from flashcaps.kernels.attend.matrix import uniform_over_image
from flashcaps.kernels.common.patches import gathered
from flashcaps.kernels.votes import Windows

from ...conftest import assert_near


@pytest.mark.parametrize(("rows", "stride", "side"), [(1, 1, 3), (2, 1, 4), (2, 2, 7)])
def test_even_shares_of_an_image_are_a_convolution(rows: int, stride: int, side: int) -> None:
    """In a convolution, 2 types and a kernel of 3 x 3; outputs and gradients."""
    image = torch.randn(2, 2, side, side, rows * 3, dtype=torch.float64, requires_grad=True)
    windows = Windows(image, torch.randn(4, 3, 18, 2, dtype=torch.float64, requires_grad=True), rows, 3, stride)
    even = gathered(windows).explicit().sum(1) / 4
    found = uniform_over_image(windows)
    assert_near(found, even)
    g = torch.randn_like(even)
    given = [windows.image, windows.weight]
    for a, b in zip(torch.autograd.grad(found, given, g), torch.autograd.grad(even, given, g), strict=True):
        assert_near(a, b)
