"""Augmentation of whole batches. Every image has its own random numbers; nothing loops over images or synchronises.

Images are (B, C, H, W), uint8 or float, and keep their dtype unless it says floats. Random numbers are arguments
(`offsets`, `mask`, ...), so that a captured CUDA graph can be given new ones.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..routing.checks import check_number, check_sizes
from .split import to_float

Size = int | tuple[int, int]


def check_images(images: Tensor) -> None:
    """Raises unless images are (B, C, H, W), uint8 or floats."""
    if not isinstance(images, Tensor) or images.layout != torch.strided:
        raise TypeError(f"images: expected a dense tensor (B, C, H, W), got {type(images).__name__}")
    if images.ndim != 4:
        raise ValueError(f"images: expected (B, C, H, W), got {tuple(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(f"images: expected uint8 or floats, got {images.dtype}; convert them with .float()")


def _pair(size: Size) -> tuple[int, int]:
    pair = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    for side in pair:
        check_sizes(size=side)
    return pair


def window(images: Tensor, corners: Tensor, size: Size) -> Tensor:
    """A window of `size` from each image, its top left corner at corners (B, 2) int64; outside is 0.

    out[b, c, y, x] = images[b, c, corners[b, 0] + y, corners[b, 1] + x]
    """
    check_images(images)
    batch, channels, height, width = images.shape
    rows, columns = (torch.arange(n, device=images.device) for n in _pair(size))
    padded = F.pad(images, (1, 1, 1, 1))  # a ring of zeros, to which every place outside is clamped
    y = (corners[:, :1] + rows + 1).clamp(0, height + 1)  # (B, H')
    x = (corners[:, 1:] + columns + 1).clamp(0, width + 1)  # (B, W')
    b = torch.arange(batch, device=images.device)[:, None, None, None]
    c = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[b, c, y[:, None, :, None], x[:, None, None, :]]


def shift(images: Tensor, offsets: Tensor) -> Tensor:
    """Move each image by offsets (B, 2) int64, down and right, and fill with zeros."""
    return window(images, -offsets, (images.shape[2], images.shape[3]))


def random_crop(images: Tensor, size: Size, padding: int, offsets: Tensor) -> Tensor:
    """A window of `size` in the image padded with `padding` zeros on each side.

    offsets (B, 2) int64: its top left corner in the padded image.
    """
    check_images(images)
    check_sizes(0, padding=padding)
    if any(n + 2 * padding < s for n, s in zip(images.shape[2:], _pair(size), strict=True)):
        raise ValueError(f"size: expected at most {images.shape[2] + 2 * padding} x {images.shape[3] + 2 * padding} "
                         f"(the image and padding {padding}), got {_pair(size)}; raise padding or lower size")
    return window(images, offsets - padding, size)


def center_crop(images: Tensor, size: Size) -> Tensor:
    """The window of `size` in the middle, with zeros around the image where the window is larger."""
    check_images(images)
    (height, width), (h, w) = images.shape[2:], _pair(size)
    top, left = (height - h) // 2, (width - w) // 2
    return F.pad(images, (-left, w - width + left, -top, h - height + top))


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror images left to right where mask (B,) is true."""
    check_images(images)
    return torch.where(mask[:, None, None, None], images.flip(-1), images)


def brightness_contrast(
    images: Tensor, brightness: float, contrast: tuple[float, float], amounts: Tensor, clamp: bool = True
) -> Tensor:
    """x -> clip((x + d - m) f + m), m the mean of each channel of x + d, d in +-brightness, f in the contrast range.

    amounts (B, 2) in [0, 1): where in their ranges d and f lie. Returns floats, in [0, 1] if clamp.
    """
    check_images(images)
    if not isinstance(contrast, list | tuple) or len(contrast) != 2:
        raise ValueError(f"contrast: expected (low, high), got {contrast!r}")
    for name, value in (("contrast", contrast[0]), ("contrast", contrast[1]), ("brightness", brightness)):
        check_number(name, value, 0)
    d = ((2 * amounts[:, 0] - 1) * brightness)[:, None, None, None]
    f = (contrast[0] + amounts[:, 1] * (contrast[1] - contrast[0]))[:, None, None, None]
    x = to_float(images) + d
    m = x.mean((2, 3), keepdim=True)
    x = (x - m) * f + m
    return x.clamp(0, 1) if clamp else x


def cutout(images: Tensor, side: int, places: Tensor) -> Tensor:
    """Set a square of side x side pixels to the mean of its image, channel by channel. Its centre is in the image.

    places (B, 2) in [0, 1): where the centre lies, down and across. Returns floats.
    """
    check_images(images)
    check_sizes(side=side)
    x, inside = to_float(images), []
    for k, n in enumerate(images.shape[2:]):
        at = torch.arange(n, device=images.device) - (places[:, k, None] * n).long() + side // 2
        inside.append((at >= 0) & (at < side))
    square = inside[0][:, None, :, None] & inside[1][:, None, None, :]  # (B, 1, H, W)
    return torch.where(square, x.mean((2, 3), keepdim=True), x)


def mixup_weights(count: int, alpha: float, generator: Generator) -> Tensor:
    """mixup (Zhang et al. 2017): (count,), each example's own share, Beta(alpha, alpha), for `mix`."""
    check_number("alpha", alpha)
    if alpha <= 0:
        raise ValueError(f"alpha: expected more than 0, got {alpha}; leave mixup out to mix nothing")
    return torch._sample_dirichlet(torch.full((count, 2), alpha), generator=generator)[:, 0]


def mix(x: Tensor, weight: Tensor, partner: Tensor) -> Tensor:
    """weight_b x_b + (1 - weight_b) x_partner(b), for images, targets or masks alike."""
    share = weight.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    return x * share + x[partner] * (1 - share)


def resize(images: Tensor, size: Size) -> Tensor:
    """Scale to `size`: by the mean of the pixels covered if it is smaller, bilinear otherwise."""
    check_images(images)
    height, width = _pair(size)
    if 0 in images.shape[1:]:
        raise ValueError(f"images: expected pixels, got {tuple(images.shape)}")
    x = images if images.is_floating_point() else images.float()
    smaller = height <= images.shape[2] and width <= images.shape[3]
    x = F.interpolate(x, (height, width), mode="area" if smaller else "bilinear")
    return x if images.is_floating_point() else x.round_().to(images.dtype)
