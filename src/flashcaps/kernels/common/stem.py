"""The first convolution as one matrix product on a GPU, on its matrix units however few the channels.

The image is laid out once, (B H' W', C k k) and a column of ones: the bias is one more row of the weights, and both
gradients are one more product. An image needs no gradient, so nothing is folded back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .operators import operator
from .patches import places
from .replay import launch
from .rows import TILE, ceil_div, fused, power_of_two

CHANNELS = 4  # at most: more, and a library's convolution is a product of its own
SMALLEST, LARGEST = 49, 512  # numbers under the kernel


def few_numbers(channels: int, kernel: int) -> bool:
    """Whether a convolution of so many channels is made a product."""
    return channels <= CHANNELS and SMALLEST <= channels * kernel * kernel <= LARGEST


def _empty_columns(x, kernel, stride, padding, dtype):
    """Columns are the numbers and a one, filled up to a multiple of 8: as the matrix units read half precision."""
    (oh, ow), columns = places(x, kernel, stride, padding), (x.shape[1] * kernel * kernel // 8 + 1) * 8
    return torch.empty(x.shape[0] * oh * ow, columns, dtype=dtype, device=x.device)


@operator("image_columns")
def image_columns(x: Tensor, kernel: int, stride: int, padding: int, dtype: torch.dtype) -> Tensor:
    """(B, C, H, W) -> (B H' W', columns) in `dtype`: C k k numbers (channel, row, column), then ones."""
    from . import patches_triton as kernels

    out = _empty_columns(x, kernel, stride, padding, dtype)
    rows, width = out.shape
    wp = power_of_two(width)
    height = max(TILE // wp, 1)
    launch(kernels.columns, (ceil_div(rows, height),))(
        x, out, rows, *x.shape[2:], *places(x, kernel, stride, padding), *x.stride(), K=x.shape[1] * kernel * kernel,
        WIDTH=width, WP=wp, ROWS=height, KERNEL=kernel, STRIDE=stride, PADDING=padding, num_warps=4,
    )  # fmt: skip
    return out


def _empty_product(cols, weight, batch, height):
    size = batch, weight.shape[0], height, cols.shape[0] // (batch * height)
    return torch.empty(size, dtype=cols.dtype, device=cols.device, memory_format=torch.channels_last)


@operator("image_product")
def image_product(cols: Tensor, weight: Tensor, batch: int, height: int) -> Tensor:
    """cols (B H' W', columns), weight (channels, columns) -> (B, channels, H', W'), channels last.

    An operator, because a ReLU that changes its result in place would else change a view, and autograd copies those.
    """
    out = _empty_product(cols, weight, batch, height)
    torch.mm(cols, weight.t(), out=out.permute(0, 2, 3, 1).view(-1, weight.shape[0]))
    return out


image_columns.register_fake(_empty_columns)
image_product.register_fake(_empty_product)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    (cols,) = ctx.saved_tensors
    return None, g.permute(0, 2, 3, 1).reshape(cols.shape[0], -1).t() @ cols, None, None


image_product.register_autograd(_backward, setup_context=_keep)


def convolve_image(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """The convolution of an image that needs no gradient, (B, C, H, W) -> (B, channels, H', W'), channels last."""
    autocast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    kernel = weight.shape[2]
    cols = image_columns(x, kernel, stride, padding, dtype)
    w = weight.flatten(1) if bias is None else torch.cat([weight.flatten(1), bias[:, None]], 1)
    w = F.pad(w, (0, cols.shape[1] - w.shape[1])).to(dtype)
    return image_product(cols, w, x.shape[0], places(x, kernel, stride, padding)[0])


class ImageConv2d(nn.Conv2d):
    """A square `nn.Conv2d` that takes images by `convolve_image` on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        if not (fused(x) and self.takes(x)):
            return super().forward(x)
        return convolve_image(x, self.weight, self.bias, self.stride[0], int(self.padding[0]))

    def takes(self, x: Tensor) -> bool:
        """Whether x is an image to lay out: no gradient, few numbers under a plain kernel, all of one dtype."""
        same = x.dtype == self.weight.dtype or torch.is_autocast_enabled(x.device.type)
        fits = x.ndim == 4 and x.shape[1] == self.in_channels and few_numbers(self.in_channels, self.kernel_size[0])
        return same and fits and not x.requires_grad and self.groups == 1 and self.dilation == (1, 1)
