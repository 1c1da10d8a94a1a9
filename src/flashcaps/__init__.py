"""flashcaps: capsule networks at the speed of the hardware."""

from . import functional
from .alternation import ascend_coefficients
from .checkpoint import load
from .heads import Activations, Decoder, Lengths, SharedLinear
from .layers import ConvCapsules, DenseCapsules, PrimaryCapsules
from .models import create_model, list_models
from .routing import ROUTING, Learned, Routed, Routing, Sizes, Step
from .stack import CapsuleStack

__version__ = "0.1.0"

__all__ = [
    "ROUTING",
    "Activations",
    "CapsuleStack",
    "ConvCapsules",
    "Decoder",
    "DenseCapsules",
    "Learned",
    "Lengths",
    "PrimaryCapsules",
    "Routed",
    "Routing",
    "SharedLinear",
    "Sizes",
    "Step",
    "ascend_coefficients",
    "create_model",
    "functional",
    "list_models",
    "load",
]
