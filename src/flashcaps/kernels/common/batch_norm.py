"""A training step of BatchNorm, what is added to it and the ReLU after both, fused on a GPU; torch's elsewhere.

    y = relu(w (x - mean) / sqrt(variance + eps) + b + residual),   x, residual, y (B, C, H, W) in channels last

What is read and written, in sizes of x. torch takes an operator each for the statistics, the normalisation, the sum,
the ReLU and their gradients: 13, with a residual 16. Here:

    forward   x for its statistics; x, (residual,) y                                          3, with a residual 4
    backward  g, x (, y, gr) for the sums of gw and gb; g or gr, x, gx                        5, with a residual 7

Without a residual the ReLU's mask is computed again from x, which is read anyway. With one y is read, which the next
layer keeps anyway, and the residual's gradient, which is the masked one, stands in for both from then on.
Sums over rows are made in two stages of fixed order: statistics and gradients are bitwise reproducible.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from .operators import Eager, is_plain, operator
from .replay import launch
from .rows import ceil_div, empty_fp32, fused, power_of_two

TILE = 4096  # elements of a program's tile, 16 for each of its threads
WIDEST = 128  # channels of a tile
PROGRAMS = {"moments": 512, "gradient_sums": 256}  # as many as the registers of 132 multiprocessors hold at a time
REGISTERS = {} if torch.version.hip else {"maxnreg": 64}  # of `moments`: for four programs to each multiprocessor
TOGETHER = 8  # channels whose sums one program adds up


def normalise(norm: nn.Module, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(norm(x) + residual), or less of it; norm's running statistics move as if it were called."""
    if takes(norm, x) and (residual is None or (residual.shape == x.shape and residual.dtype == x.dtype)):
        return normalise_taken(norm, x, residual, relu)
    y: Tensor = norm(x)
    y = y if residual is None else y + residual
    return y.relu_() if relu else y


def normalise_taken(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    """`normalise` of what `takes` allows."""
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    given: tuple[Any, ...] = x, *running, norm.weight, norm.bias, residual, norm.momentum, norm.eps, relu
    return train_step(*given)[0] if is_plain(given) else _train_step(*given)[0]


def takes(norm: nn.Module, x: Tensor) -> TypeGuard[nn.BatchNorm2d]:
    """Whether the kernels do norm's step: training, as `nn.BatchNorm2d` is by default, without hooks."""
    if not (fused(x) and type(norm) is nn.BatchNorm2d and norm.training and norm.affine and norm.track_running_stats):
        return False
    plain = norm.momentum is not None and not (norm._forward_hooks or norm._forward_pre_hooks)
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return plain and last and x.shape[1] == norm.num_features and x.numel() > x.shape[1]


class Cut:
    """x (B, C, H, W) as rows x channels, in tiles of rows and blocks of channels."""

    def __init__(self, x: Tensor) -> None:
        self.rows, self.channels = x.numel() // x.shape[1], x.shape[1]
        width = min(power_of_two(self.channels), WIDEST)
        self.height = min(power_of_two(self.rows), TILE // width)
        self.tiles, self.blocks = ceil_div(self.rows, self.height), ceil_div(self.channels, width)
        warps = max(self.height * width // (TILE // 8), 1)
        self.options = {"C": self.channels, "CP": width, "ROWS": self.height, "num_warps": warps}

    def programs(self, kernel: str) -> int:
        """Programs of each block that sum over rows."""
        return min(self.tiles, max(PROGRAMS[kernel] // self.blocks, 1))

    def merge(self, programs: int) -> tuple[tuple[int], dict[str, int]]:
        """Grid and options of the second stage of sums."""
        parts = power_of_two(programs)
        options = {"C": self.channels, "CT": TOGETHER, "PP": parts, "num_warps": max(parts * TOGETHER // 512, 1)}
        return (ceil_div(self.channels, TOGETHER),), options


def _empty_like(x: Tensor, *_: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@operator("batch_statistics", ("running_mean", "running_var", "tracked"))
def batch_statistics(x: Tensor, running_mean: Tensor, running_var: Tensor, tracked: Tensor, momentum: float) -> Tensor:
    """(2, C) in fp32: mean and variance of each channel. The running ones move, `tracked` counts one batch more."""
    from . import batch_norm_triton as kernels

    x, at = _laid_out(x), Cut(x)
    programs = at.programs("moments")
    parts, statistics = empty_fp32(x, programs, 2, at.channels), empty_fp32(x, 2, at.channels)
    launch(kernels.moments, (programs, at.blocks))(x, parts, at.rows, **REGISTERS, **at.options)
    grid, options = at.merge(programs)
    launch(kernels.merge_moments, grid)(
        parts, statistics, running_mean, running_var, tracked, programs, at.rows, momentum, ROWS=at.height, **options
    )
    return statistics


@operator("batch_norm")
def batch_norm(
    x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
) -> Tensor:
    """y in channels last. Gradients take `statistics` (2, C) for those of x and go through them to x."""
    from . import batch_norm_triton as kernels

    x, at, y = _laid_out(x), Cut(x), _empty_like(x)
    launch(kernels.normalise, (at.tiles, at.blocks))(
        x, x if residual is None else _laid_out(residual), y, statistics, weight, bias, at.rows, eps,
        RESIDUAL=residual is not None, RELU=relu, **at.options,
    )  # fmt: skip
    return y


batch_statistics.register_fake(lambda x, *_: empty_fp32(x, 2, x.shape[1]))
batch_norm.register_fake(_empty_like)


def _empty_gradients(g, x, y, statistics, weight, bias, eps, relu):
    gr = x.new_empty(0) if y is None else _empty_like(x)
    return _empty_like(x), torch.empty_like(weight), torch.empty_like(bias), gr


@operator("batch_norm_backward")
def batch_norm_backward(
    g: Tensor, x: Tensor, y: Tensor | None, statistics: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gx, gw, gb, and the gradient before the ReLU if y tells where that was open, else nothing."""
    from . import batch_norm_triton as kernels

    g, x, at = _laid_out(g), _laid_out(x), Cut(x)
    programs, of_channels = at.programs("gradient_sums"), (statistics, weight, bias, at.rows, eps)
    parts, sums = empty_fp32(x, programs, 2, at.channels), empty_fp32(x, 2, at.channels)
    gx, gw, gb, gr = _empty_gradients(g, x, y, statistics, weight, bias, eps, relu)
    launch(kernels.gradient_sums, (programs, at.blocks))(
        g, x, x if y is None else _laid_out(y), gr, parts, *of_channels, RESIDUAL=y is not None, RELU=relu,
        **at.options,
    )  # fmt: skip
    grid, options = at.merge(programs)
    launch(kernels.sum_gradients, grid)(parts, sums, gw, gb, programs, **options)
    launch(kernels.gradient, (at.tiles, at.blocks))(
        g if y is None else gr, x, gx, sums, *of_channels, RELU=relu and y is None, **at.options
    )
    return gx, gw, gb, gr


batch_norm_backward.register_fake(_empty_gradients)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, statistics, weight, bias, residual, ctx.eps, ctx.relu = inputs
    ctx.residual = residual is not None
    ctx.save_for_backward(x, statistics, weight, bias, output if ctx.relu and ctx.residual else None)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, statistics, weight, bias, y = ctx.saved_tensors
    gx, gw, gb, gr = batch_norm_backward(g, x, y, statistics, weight, bias, ctx.eps, ctx.relu)
    return gx, None, gw, gb, (g if y is None else gr) if ctx.residual else None, None, None


batch_norm.register_autograd(_backward, setup_context=_keep)


def _train_step(
    x: Tensor, running_mean: Tensor, running_var: Tensor, tracked: Tensor, weight: Tensor, bias: Tensor,
    residual: Tensor | None, momentum: float, eps: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y and the statistics. Two operators, since torch knows no gradient of one that changes its arguments."""
    statistics = batch_statistics(x.detach() if x.requires_grad else x, running_mean, running_var, tracked, momentum)
    return batch_norm(x, statistics, weight, bias, residual, eps, relu), statistics


def _keep_step(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, _, _, _, *parameters, residual, _, eps, relu = inputs
    y, statistics = output
    ctx.mark_non_differentiable(statistics)
    ctx.set_materialize_grads(False)
    _keep(ctx, (x, statistics, *parameters, residual, eps, relu), y)


def _backward_step(ctx: Any, g: Tensor | None, of_statistics: None) -> tuple[Tensor | None, ...]:
    if g is None:
        return (None,) * 10
    gx, _, gw, gb, gr, *_ = _backward(ctx, g)
    return gx, None, None, None, gw, gb, gr, None, None, None


train_step = Eager(_train_step, changed=(1, 2, 3))  # both in one plan
train_step.register_autograd(_backward_step, setup_context=_keep_step)
