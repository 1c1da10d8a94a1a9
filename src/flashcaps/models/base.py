"""The base class of all models, what they return, and their initial weights."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..nn.backbones import ChannelsLast, Image
from ..routing import Routed
from ..routing.checks import can_look, check_tensor

BYTES = 32.0  # larger pixels are bytes stored as floats; standardised pixels stay below


class Output(NamedTuple):
    """scores (B, K): lengths, activations, scores or logits, whatever the model's loss takes."""

    scores: Tensor
    routed: Routed | None  # the class capsules; None in a plain network
    reconstruction: Tensor | None = None  # (B, C, H, W), or (B, M, C, H, W) when M classes were chosen


class Model(ChannelsLast):
    """`create_model(model.name, **model.overrides)` builds it again. image is None where the input is no image."""

    name: str
    overrides: dict[str, Any]
    classes: int
    image: Image | None
    decoder: nn.Module | None
    any_size = False  # whether images of another height and width fit
    __call__: Callable[..., Output]

    def check_images(self, images: Tensor) -> None:
        """Checks shape and dtype, and on the CPU the range of pixels, for which another device would have to wait."""
        check_tensor("images", images)
        assert self.image is not None
        (c, h, w), came = self.image, tuple(images.shape)
        if not images.is_floating_point():
            raise ValueError(f"images: expected floating-point pixels from 0 to 1, got {images.dtype}; "
                             "give images.float() / 255")  # fmt: skip
        if len(came) != 4 or came[1] != c:
            raise ValueError(f"images: expected (B, {c}, {h}, {w}), got {came}; see image=")
        if not self.any_size and came[1:] != self.image:
            raise ValueError(f"images: expected (B, {c}, {h}, {w}), got {came}; resize them, or build the model for "
                             f"them, by create_model(..., image={came[1:]}), in a recipe model.image={list(came[1:])}")
        if images.numel() and can_look(images) and BYTES < (most := float(images.detach().max())) < math.inf:
            raise ValueError(f"images: expected pixels from 0 to 1, or standardised, got up to {most:g}; "
                             "give images / 255")  # fmt: skip


def init_weights(start: str, backbone: nn.Module | None, primary: nn.Module, decoder: nn.Module | None = None) -> None:
    """Sets the weights of convolutions and linear layers; capsule layers have their own initial values.

    start: "default" keeps PyTorch's. "kaiming" is heinsen's: Kaiming normal, biases 0. "original" is that of dynamic's
    public code: a normal distribution of standard deviation 0.05 in the backbone and 0.1 in the decoder, cut at twice
    that, biases 0.1. Squashed primary capsules and capsule layers always start as in that code.
    """
    kaiming, original = ((backbone, 0.0), (primary, 0.0)), ((backbone, 0.05), (decoder, 0.1))
    for module, std in {"default": (), "kaiming": kaiming, "original": original}[start]:
        for layer in module.modules() if module is not None else ():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                if start == "kaiming":
                    nn.init.kaiming_normal_(layer.weight)
                else:
                    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
                if layer.bias is not None:
                    nn.init.constant_(layer.bias, 0.1 if std else 0.0)
