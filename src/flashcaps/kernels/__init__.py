"""Fused twins of the routing files, same stems: they take `Votes` and never store a vote.

`MATRIX` runs anywhere: blocks of children, matrix products, recomputed in the backward pass. Those in `TRITON` take
`triton=True` for kernels that keep votes in registers.
"""

from __future__ import annotations

from collections.abc import Callable

from ..routing.contract import Routed
from . import attention, discriminative, dynamic, em, heinsen

MATRIX: dict[str, Callable[..., Routed]] = {
    "dynamic": dynamic.dynamic_routing,
    "em": em.em_routing,
    "attention": attention.attention_routing,
    "heinsen": heinsen.heinsen_routing,
    "discriminative": discriminative.discriminative_routing,
}

TRITON = ("dynamic", "em", "attention", "heinsen", "discriminative")

__all__ = ["MATRIX", "TRITON"]
