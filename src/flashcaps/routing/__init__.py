"""Routing algorithms, one file per paper. A new one is a file here, a line in `ROUTING` and a test."""

from ..plugins import Registry
from .attention import Attention
from .contract import Learned, Routed, Routing, Sizes, Step
from .discriminative import Discriminative
from .dynamic import Dynamic
from .em import EM
from .heinsen import Heinsen

ROUTING: Registry[type[Routing]] = Registry("flashcaps.routing", {
    "dynamic": Dynamic,
    "em": EM,
    "attention": Attention,
    "heinsen": Heinsen,
    "discriminative": Discriminative,
})  # fmt: skip

__all__ = ["ROUTING", "Learned", "Routed", "Routing", "Sizes", "Step"]
