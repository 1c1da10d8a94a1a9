"""Measures of a drawn figure: area, stroke thickness, width, height, skew."""

import torch
from torch import Tensor

MEASURES = ("thickness", "skew", "width", "height", "area")


def measure(pictures: Tensor) -> dict[str, Tensor]:
    """pictures (..., H, W) >= 0, ink on 0 -> each measure (...), in pixels; skew is a slope.

    A stroke of width w and length L has an area of w L, and its edges (the total variation) are 2 L long: thickness is
    2 area / edges. Width and height are those of the box with the same standard deviation. Skew: how many pixels the
    ink moves right per pixel up.
    """
    h, w = pictures.shape[-2:]
    y = torch.arange(h, dtype=pictures.dtype, device=pictures.device)
    x = torch.arange(w, dtype=pictures.dtype, device=pictures.device)
    area = pictures.sum((-2, -1))
    ink = area.clamp(min=1e-6)
    rows, columns = pictures.sum(-1), pictures.sum(-2)
    dy = y - ((rows * y).sum(-1) / ink)[..., None]
    dx = x - ((columns * x).sum(-1) / ink)[..., None]
    vertical = (rows * dy.square()).sum(-1) / ink
    horizontal = (columns * dx.square()).sum(-1) / ink
    shear = (pictures * dy[..., :, None] * dx[..., None, :]).sum((-2, -1)) / ink
    framed = torch.nn.functional.pad(pictures, (1, 1, 1, 1))
    down, across = framed.diff(dim=-2)[..., :-1], framed.diff(dim=-1)[..., :-1, :]
    edges = (down.square() + across.square()).sqrt().sum((-2, -1)).clamp(min=1e-6)
    return {
        "thickness": 2 * area / edges,
        "skew": -shear / vertical.clamp(min=1e-6),
        "width": (12 * horizontal).sqrt(),
        "height": (12 * vertical).sqrt(),
        "area": area,
    }


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's r along the last axis; 0 where either does not vary."""
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    scale = (x.square().sum(-1) * y.square().sum(-1)).sqrt()
    return torch.where(scale > 1e-9, (x * y).sum(-1) / scale.clamp(min=1e-9), torch.zeros_like(scale))
