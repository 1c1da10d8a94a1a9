"""How weights begin, where PyTorch's own initial values are not what a paper says. Capsule layers have their own."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def _layers(module: nn.Module | None) -> list[nn.Conv2d | nn.Linear]:
    return [] if module is None else [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def default(backbone: nn.Module | None, primary: nn.Module, decoder: nn.Module | None) -> None:
    """PyTorch's."""


def kaiming(backbone: nn.Module | None, primary: nn.Module, decoder: nn.Module | None = None) -> None:
    """heinsen: Kaiming normal, biases 0."""
    for layer in _layers(backbone) + _layers(primary):
        nn.init.kaiming_normal_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def original(backbone: nn.Module | None, primary: nn.Module, decoder: nn.Module | None) -> None:
    """After dynamic's public code: a normal of 0.1 cut at two standard deviations, biases 0.1. The primary capsules
    add that 0.1 after they divide by 32, so their own bias begins at 0."""
    for module, bias in ((backbone, 0.1), (primary, 0.0), (decoder, 0.1)):
        for layer in _layers(module):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, bias)


STARTS: dict[str, Callable[[nn.Module | None, nn.Module, nn.Module | None], None]] = {
    "default": default,
    "kaiming": kaiming,
    "original": original,
}
