"""Backbones, from images to features: frozen specs that hold numbers and build a module for any number of channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from ..kernels.common.batch_norm import normalise, normalise_taken, takes
from ..kernels.common.stem import ImageConv2d, few_numbers
from ..routing.checks import check_choice, check_sizes

Image = tuple[int, int, int]  # (C, H, W)

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "leaky_relu": partial(nn.LeakyReLU, inplace=True),
    "swish": nn.SiLU,
    "none": nn.Identity,
}
POOLS: dict[str, Callable[[], nn.Module]] = {
    "max": partial(nn.MaxPool2d, 2),
    "average": partial(nn.AvgPool2d, 2),
    "global": partial(nn.AdaptiveAvgPool2d, 1),
}


def through(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Calls the layers one after the other. In training on a GPU a BatchNorm and the ReLU after it are one kernel."""
    rest = list(layers)
    while rest:
        layer = rest.pop(0)
        if isinstance(layer, nn.BatchNorm2d) and takes(layer, x):
            relu = len(rest) > 0 and isinstance(rest[0], nn.ReLU)
            x = normalise_taken(layer, x, None, relu)
            rest = rest[relu:]
        else:
            x = layer(x)
    return x


class ChannelsLast(nn.Module):
    """A module whose convolutions compute channels last on a GPU, the order that tensor cores need."""

    device = "cuda"

    def _apply(self, *given: Any, **named: Any) -> Self:  # what .to(), .cuda() and .to_empty() call
        super()._apply(*given, **named)  # type: ignore[no-untyped-call]
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and layer.weight.device.type == self.device:
                layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self


class Layers(nn.Sequential):
    """`nn.Sequential` that calls its layers by `through`."""

    def forward(self, x: Tensor) -> Tensor:
        return through(self, x)


class Standardise(nn.Module):
    """(image - mean) / standard deviation of each image (B, C, H, W), over all channels together.

    The deviation is at least that of one bright pixel, 1 / sqrt(numbers), as in dynamic's public code. This removes the
    mean, which is most of the power of a picture, and differences in brightness and contrast.
    """

    def forward(self, images: Tensor) -> Tensor:
        x = images.float()
        least = math.prod(x.shape[1:]) ** -0.5
        deviation = x.std((1, 2, 3), correction=0, keepdim=True).clamp(min=least)
        return ((x - x.mean((1, 2, 3), keepdim=True)) / deviation).to(images.dtype)


class Normalise(nn.Module):
    """(images - mean) / std, with one mean and one std for each channel of images (B, C, H, W)."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class Backbone(Protocol):
    """Anything that builds a module (B, in_channels, H, W) -> (B, channels, H', W')."""

    @property
    def channels(self) -> int: ...

    def build(self, in_channels: int) -> nn.Module: ...


@dataclass(frozen=True)
class Conv:
    """One convolution with bias. norm: a BatchNorm "before" or "after" the activation, as the papers' tables print it.

    pool: "max" or "average" over 2 x 2 places, or "global", the average over all places. standardise: standardises each
    image first, for networks without batch normalisation after the first convolution, or that brightness misleads.
    """

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    activation: str = "relu"
    norm: str | None = None
    pool: str | None = None
    standardise: bool = False

    def build(self, in_channels: int) -> nn.Module:
        check_choice("activation", self.activation, ACTIVATIONS)
        check_sizes(in_channels=in_channels, channels=self.channels, kernel=self.kernel, stride=self.stride)
        check_sizes(0, padding=self.padding)
        layers: list[nn.Module] = [ACTIVATIONS[self.activation]()]
        if self.norm is not None:
            check_choice("norm", self.norm, ("before", "after"))
            layers.insert(0 if self.norm == "before" else 1, nn.BatchNorm2d(self.channels))
        if self.pool is not None:
            check_choice("pool", self.pool, POOLS)
            layers.append(POOLS[self.pool]())
        kind = ImageConv2d if few_numbers(in_channels, self.kernel) else nn.Conv2d
        convolution = kind(in_channels, self.channels, self.kernel, self.stride, self.padding)
        first = [Standardise()] if self.standardise else []
        return Layers(*first, convolution, *layers)


@dataclass(frozen=True)
class Chain:
    """Backbones one after the other."""

    parts: tuple[Backbone, ...]

    @property
    def channels(self) -> int:
        return self.parts[-1].channels

    def build(self, in_channels: int) -> nn.Module:
        inputs = [in_channels, *(part.channels for part in self.parts)]
        return nn.Sequential(*(part.build(n) for part, n in zip(self.parts, inputs, strict=False)))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, a 1 x 1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = Layers(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        *layers, norm = self.body
        return normalise(norm, through(layers, x), self.shortcut(x))


@dataclass(frozen=True)
class ResNet:
    """A 3 x 3 stem, then stages of (width, blocks, stride): residual blocks, the first of which has the stride.

    pool: average over all places at the end. normalise: mean and std of each channel, to normalise images with first.
    """

    stages: tuple[tuple[int, int, int], ...]
    pool: bool = False
    normalise: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def channels(self) -> int:
        return self.stages[-1][0]

    def build(self, in_channels: int) -> nn.Module:
        width = self.stages[0][0]
        stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        for wide, blocks, stride in self.stages:
            for k in range(blocks):
                layers.append(ResidualBlock(width, wide, stride if k == 0 else 1))
                width = wide
        if self.pool:
            layers.append(POOLS["global"]())
        first = [] if self.normalise is None else [Normalise(*self.normalise)]
        return Layers(*first, *layers)


class Coordinates(nn.Module):
    """Stack an image with its coordinates, evenly spaced from -1 to 1, across and down: two more channels."""

    def forward(self, images: Tensor) -> Tensor:
        b, _, h, w = images.shape
        y = torch.linspace(-1, 1, h, device=images.device, dtype=images.dtype)
        x = torch.linspace(-1, 1, w, device=images.device, dtype=images.dtype)
        return torch.cat([images, x.expand(b, 1, h, w), y[:, None].expand(b, 1, h, w)], 1)


@dataclass(frozen=True)
class CoordinateConvs:
    """heinsen, Fig. 3: coordinates, then BatchNorm, a 3 x 3 convolution without padding and Swish, once per stride."""

    channels: int = 64
    strides: tuple[int, ...] = (1, 2, 1, 2, 1, 2)

    def build(self, in_channels: int) -> nn.Module:
        layers: list[nn.Module] = [Coordinates()]
        n = in_channels + 2
        for stride in self.strides:
            layers += [nn.BatchNorm2d(n), nn.Conv2d(n, self.channels, 3, stride), nn.SiLU()]
            n = self.channels
        return Layers(*layers)


BACKBONES: dict[str, Backbone] = {
    "conv": Conv(256, kernel=3, stride=2, padding=1),
    "conv9": Conv(256, kernel=9),
    "resnet": ResNet(((64, 3, 1), (128, 4, 2))),
    "resnet_wide": ResNet(((64, 3, 1), (256, 4, 2))),
    "coordinates": CoordinateConvs(),
}


def output_shape(backbone: nn.Module, image: Image) -> Image:
    """(C', H', W') of the features of one image, by a dry run that changes neither statistics nor random state."""
    if not isinstance(image, list | tuple) or len(image) != 3:
        raise ValueError(f"image: expected (C, H, W), got {image!r}")
    check_sizes(**dict(zip(("image channels", "image height", "image width"), image, strict=True)))
    weight = next(backbone.parameters(), None)
    device = None if weight is None else weight.device
    modes = {m: m.training for m in backbone.modules()}
    backbone.eval()
    try:
        with torch.no_grad():
            features = backbone(torch.zeros(1, *image, device=device))
    except RuntimeError as error:
        raise ValueError(f"image: {image} (C, H, W) does not pass through the backbone: {error}") from error
    finally:
        for m, training in modes.items():
            m.training = training
    if features.ndim != 4:
        raise ValueError(f"backbone: expected features (B, C, H, W), got {tuple(features.shape)} for images {image}")
    _, c, h, w = features.shape
    return c, h, w
