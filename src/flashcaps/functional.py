"""Routing functions and losses, flat."""

from torch import Tensor

from .nn.losses import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    margin_loss,
    reconstruction_loss,
    spread_loss,
    spread_margin,
    spread_margin_by_step,
)
from .routing import math as _math
from .routing.attention import attention_routing
from .routing.checks import check_axis, check_floating, check_overflow
from .routing.contract import Routed, Step
from .routing.discriminative import discriminative_routing, discriminative_update
from .routing.dynamic import dynamic_routing
from .routing.em import em_routing, inverse_temperature
from .routing.heinsen import heinsen_routing


def length(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """||x||, with gradient 0 at x = 0."""
    check_floating("x", x)
    check_axis("dim", dim, x)
    n = _math.length(x, dim, keepdim)
    check_overflow((n,), x=x)
    return n


def squash(s: Tensor, dim: int = -1) -> Tensor:
    r"""Keep the direction of `s`, map its length n to n^2 / (1 + n^2) (dynamic, Eq. 1).

    Value and gradient are exactly 0 at s = 0.
    """
    check_floating("s", s)
    check_axis("dim", dim, s)
    v = _math.squash(s, dim)
    check_overflow((v,), s=s)
    return v


__all__ = [
    "Routed",
    "Step",
    "attention_routing",
    "binary_cross_entropy_loss",
    "cross_entropy_loss",
    "discriminative_routing",
    "discriminative_update",
    "dynamic_routing",
    "em_routing",
    "heinsen_routing",
    "inverse_temperature",
    "length",
    "margin_loss",
    "reconstruction_loss",
    "spread_loss",
    "spread_margin",
    "spread_margin_by_step",
    "squash",
]
