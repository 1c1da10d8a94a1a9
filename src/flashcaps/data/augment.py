"""Augmentation of whole batches: every image draws its own numbers, without loops over images or synchronisation.

Images are (B, C, H, W), uint8 or float, and keep their type where no arithmetic is done on them. Random numbers
come from `generator`, or are handed in (`offsets`, `mask`, ...), so that a captured graph can be fed from outside.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..routing.checks import check_number
from .split import check_whole, to_float

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
        check_whole(1, size=side)
    return pair


def _rand(images: Tensor, columns: int, generator: Generator | None) -> Tensor:
    return torch.rand(images.shape[0], columns, device=images.device, generator=generator)


def window(images: Tensor, corners: Tensor, size: Size) -> Tensor:
    """A window of `size` from each image, its top left corner at corners (B, 2) int64; outside is 0.

    out[b, c, y, x] = images[b, c, corners[b, 0] + y, corners[b, 1] + x]
    """
    check_images(images)
    batch, channels, height, width = images.shape
    rows, columns = (torch.arange(n, device=images.device) for n in _pair(size))
    padded = F.pad(images, (1, 1, 1, 1))  # a ring of zeros: every place outside is clamped into it
    y = (corners[:, :1] + rows + 1).clamp(0, height + 1)  # (B, H')
    x = (corners[:, 1:] + columns + 1).clamp(0, width + 1)  # (B, W')
    b = torch.arange(batch, device=images.device)[:, None, None, None]
    c = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[b, c, y[:, None, :, None], x[:, None, None, :]]


def shift(images: Tensor, pixels: int, generator: Generator | None = None, *, offsets: Tensor | None = None) -> Tensor:
    """Move each image by a whole number of pixels, up to `pixels` each way, with zeros moving in.

    offsets (B, 2) int64: down and right, in place of random ones.
    """
    check_images(images)
    check_whole(pixels=pixels)
    if not images.numel():
        return images
    if offsets is None:
        offsets = (_rand(images, 2, generator) * (2 * pixels + 1)).long() - pixels
    return window(images, -offsets, (images.shape[2], images.shape[3]))


def random_crop(
    images: Tensor, size: Size, padding: int = 0, generator: Generator | None = None, *, offsets: Tensor | None = None
) -> Tensor:
    """A window of `size` anywhere in the image padded with `padding` zeros on each side.

    offsets (B, 2) int64: its top left corner in the padded image, in place of a random one.
    """
    check_images(images)
    check_whole(padding=padding)
    spare = [n + 2 * padding - s for n, s in zip(images.shape[2:], _pair(size), strict=True)]
    if min(spare) < 0:
        raise ValueError(f"size: expected at most {images.shape[2] + 2 * padding} x {images.shape[3] + 2 * padding} "
                         f"(the image and padding {padding}), got {_pair(size)}; raise padding or lower size")
    if offsets is None:
        u = _rand(images, 2, generator)
        offsets = torch.stack([(u[:, i] * (n + 1)).long() for i, n in enumerate(spare)], dim=1)
    return window(images, offsets - padding, size)


def center_crop(images: Tensor, size: Size) -> Tensor:
    """The window of `size` in the middle; zeros around where it is larger than the image."""
    check_images(images)
    (height, width), (h, w) = images.shape[2:], _pair(size)
    top, left = (height - h) // 2, (width - w) // 2
    return F.pad(images, (-left, w - width + left, -top, h - height + top))


def flip(
    images: Tensor, generator: Generator | None = None, *, probability: float = 0.5, mask: Tensor | None = None
) -> Tensor:
    """Mirror each image left to right with `probability`, or where mask (B,) says so."""
    check_images(images)
    check_number("probability", probability, 0)
    if mask is None:
        mask = _rand(images, 1, generator)[:, 0] < probability
    return torch.where(mask[:, None, None, None], images.flip(-1), images)


def brightness_contrast(
    images: Tensor, brightness: float = 32 / 255, contrast: tuple[float, float] = (0.5, 1.5),
    generator: Generator | None = None, *, amounts: Tensor | None = None,
) -> Tensor:
    """x -> clip((x + d - m) f + m), m the mean of each channel of x + d, d in +-brightness, f in the contrast range.

    amounts (B, 2) in [0, 1): where in their ranges d and f lie, in place of random ones. Returns floats in [0, 1].
    """
    check_images(images)
    if not isinstance(contrast, list | tuple) or len(contrast) != 2:
        raise ValueError(f"contrast: expected (low, high), got {contrast!r}")
    for name, value in (("contrast", contrast[0]), ("contrast", contrast[1]), ("brightness", brightness)):
        check_number(name, value, 0)
    u = _rand(images, 2, generator) if amounts is None else amounts
    d = ((2 * u[:, 0] - 1) * brightness)[:, None, None, None]
    f = (contrast[0] + u[:, 1] * (contrast[1] - contrast[0]))[:, None, None, None]
    x = to_float(images) + d
    m = x.mean((2, 3), keepdim=True)
    return ((x - m) * f + m).clamp(0, 1)


def cutout(images: Tensor, side: int, generator: Generator | None = None, *, places: Tensor | None = None) -> Tensor:
    """Set a square of side x side pixels to the mean of its image (of each channel); the edge cuts it off.

    places (B, 2) in [0, 1): where its centre lies, down and across, in place of random ones. Returns floats.
    """
    check_images(images)
    check_whole(1, side=side)
    u = _rand(images, 2, generator) if places is None else places
    x = to_float(images)
    return torch.where(boxes(x, u, side, side), x.mean((2, 3), keepdim=True), x)


def boxes(images: Tensor, places: Tensor, height: Tensor | int, width: Tensor | int) -> Tensor:
    """(B, 1, H, W) bool: a box of height x width pixels, (B,) each or one for all, cut off at the edge.

    places (B, 2) in [0, 1): where its centre lies, down and across.
    """
    inside = []
    for k, (n, side) in enumerate(zip(images.shape[2:], (height, width), strict=True)):
        first = (places[:, k] * n).long() - side // 2
        at = torch.arange(n, device=images.device) - first[:, None]
        inside.append((at >= 0) & (at < (side if isinstance(side, int) else side[:, None])))
    return inside[0][:, None, :, None] & inside[1][:, None, None, :]


def cutmix(
    images: Tensor, probability: float, generator: Generator | None = None, *, amounts: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """CutMix (Yun et al. 2019): with `probability`, a box of an image is another's. -> (images, weight, partner)

    weight (B,): the share of its own pixels, by which `mix` mixes targets. The box has the proportions of the image and
    a share of its area that is uniform in (0, 1), cut off at the edge. amounts (B, 4) in [0, 1), in place of random
    numbers: whether and how large, the place of the centre (2), and by their order the partners.
    """
    check_images(images)
    check_number("probability", probability, 0)
    u = _rand(images, 4, generator) if amounts is None else amounts
    share = torch.where(u[:, 0] < probability, u[:, 0] / max(probability, 1e-9), 0.0)
    height, width = ((share.sqrt() * n).round().long() for n in images.shape[2:])
    box, partner = boxes(images, u[:, 1:3], height, width), u[:, 3].argsort()
    return torch.where(box, images[partner], images), 1 - box.float().mean((1, 2, 3)), partner


def mixup_weights(
    count: int, alpha: float, generator: Generator | None = None, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """mixup (Zhang et al. 2017). -> (weight, partner), both (count,), for `mix`.

    weight: each example's own share, Beta(alpha, alpha); partner: the index of the example it is mixed with.
    """
    check_number("alpha", alpha)
    if alpha <= 0:
        raise ValueError(f"alpha: expected more than 0, got {alpha}; leave mixup out to mix nothing")
    concentration = torch.full((count, 2), alpha, device=device)
    weight = torch._sample_dirichlet(concentration, generator=generator)[:, 0]
    partner = torch.rand(count, device=device, generator=generator).argsort()
    return weight, partner


def mix(x: Tensor, weight: Tensor, partner: Tensor) -> Tensor:
    """weight_b x_b + (1 - weight_b) x_partner(b), for images, targets or masks alike."""
    share = weight.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    return x * share + x[partner] * (1 - share)


def resize(images: Tensor, size: Size) -> Tensor:
    """Scale to `size`: the mean of the pixels covered when smaller, bilinear otherwise."""
    check_images(images)
    height, width = _pair(size)
    if 0 in images.shape[1:]:
        raise ValueError(f"images: expected pixels, got {tuple(images.shape)}")
    x = images if images.is_floating_point() else images.float()
    smaller = height <= images.shape[2] and width <= images.shape[3]
    x = F.interpolate(x, (height, width), mode="area" if smaller else "bilinear")
    return x if images.is_floating_point() else x.round_().to(images.dtype)
