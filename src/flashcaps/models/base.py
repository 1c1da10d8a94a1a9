"""What every model is and answers with."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from ..nn.backbones import Image
from ..routing import Routed
from ..routing.checks import check_floating


class Output(NamedTuple):
    """scores (B, K): lengths, activations, scores or logits, whatever the model's loss takes."""

    scores: Tensor
    routed: Routed | None  # the class capsules; None in a plain network
    reconstruction: Tensor | None = None  # (B, C, H, W), or (B, M, C, H, W) when M classes were chosen


class Model(nn.Module):
    """`create_model(model.name, **model.overrides)` builds it again. image is None where the input is no image."""

    name: str
    overrides: dict[str, Any]
    classes: int
    image: Image | None
    decoder: nn.Module | None

    def check_images(self, images: Tensor) -> None:
        check_floating("images", images)
        assert self.image is not None
        c, h, w = self.image
        if images.ndim != 4 or images.shape[1] != c:
            raise ValueError(f"images: expected (B, {c}, {h}, {w}), got {tuple(images.shape)}; see image=")
