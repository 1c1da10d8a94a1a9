"""The first convolution as one matrix product on a GPU, on its matrix units however few the channels.

The image is laid out once, (B H' W', C k k) and a column of ones: the bias is one more row of the weights, and both
gradients are one more product. An image needs no gradient, so nothing is folded back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
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


def _outputs(x, weight, bias, stride, padding, dtype):
    """Columns are the numbers and a one, filled up to a multiple of 8: as the matrix units read half precision."""
    (oh, ow), columns = places(x, weight.shape[2], stride, padding), (weight[0].numel() // 8 + 1) * 8
    size, to = (x.shape[0], weight.shape[0], oh, ow), {"dtype": dtype, "device": x.device}
    cols = torch.empty(x.shape[0] * oh * ow, columns, **to)
    return torch.empty(size, memory_format=torch.channels_last, **to), cols


@operator("image_product")
def image_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The convolution of x (B, C, H, W), (B, channels, H', W') in `dtype`, channels last, and the columns that it is a
    product of, (B H' W', columns): C k k numbers (channel, row, column), then ones.

    An operator, because a ReLU that changes its result in place would else change a view, and autograd copies those.
    """
    from . import patches_triton as kernels

    out, cols = _outputs(x, weight, bias, stride, padding, dtype)
    (rows, width), (channels, _, kernel, _) = cols.shape, weight.shape
    wp = power_of_two(width)
    height = max(TILE // wp, 1)
    launch(kernels.columns, (ceil_div(rows, height),))(
        x, cols, rows, *x.shape[2:], *out.shape[2:], *x.stride(), K=weight[0].numel(), WIDTH=width, WP=wp,
        ROWS=height, KERNEL=kernel, STRIDE=stride, PADDING=padding, num_warps=4,
    )  # fmt: skip
    given = [weight.flatten(1)] if bias is None else [weight.flatten(1), bias[:, None]]
    rest = torch.zeros(channels, width - sum(y.shape[1] for y in given), dtype=weight.dtype, device=x.device)
    w = torch.cat([*given, rest], 1).to(dtype)
    torch.mm(cols, w.t(), out=out.permute(0, 2, 3, 1).view(-1, channels))
    return out, cols


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, weight, bias, *_ = inputs
    ctx.shape, ctx.biased, ctx.dtype = weight.shape, bias is not None, weight.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, g: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if g is None:
        return (None,) * 6
    (cols,), count = ctx.saved_tensors, math.prod(ctx.shape[1:])
    both = (g.permute(0, 2, 3, 1).reshape(cols.shape[0], -1).t() @ cols).to(ctx.dtype)  # (channels, columns)
    return None, both[:, :count].reshape(ctx.shape), both[:, count] if ctx.biased else None, None, None, None


image_product.register_fake(_outputs)
image_product.register_autograd(_backward, setup_context=_keep)


def convolve_image(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """The convolution of an image that needs no gradient, (B, C, H, W) -> (B, channels, H', W'), channels last."""
    autocast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return image_product(x, weight, bias, stride, padding, dtype)[0]


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
