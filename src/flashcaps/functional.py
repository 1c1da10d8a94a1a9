"""Routing functions and losses, flat."""

from .losses import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    margin_loss,
    reconstruction_loss,
    spread_loss,
    spread_margin,
    spread_margin_by_step,
)
from .routing._math import length, squash
from .routing._types import Routed, Step
from .routing.attention import attention_routing
from .routing.discriminative import discriminative_routing, discriminative_update
from .routing.dynamic import dynamic_routing
from .routing.em import em_routing, inverse_temperature
from .routing.heinsen import heinsen_routing

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
