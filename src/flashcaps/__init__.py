"""flashcaps: capsule networks at the speed of the hardware."""

from . import functional
from .deploy.convert import convert
from .kernels.warm_up import warm_up
from .models import create_model, list_models
from .nn.capsules import ConvCapsules, DenseCapsules, PrimaryCapsules
from .nn.coefficients import ascend_coefficients
from .nn.heads import Activations, Decoder, Lengths, SharedLinear
from .nn.stack import CapsuleStack
from .routing import ROUTING, Learned, Routed, Routing, Sizes, Step
from .training.capture import capture
from .training.checkpoint import load

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
    "capture",
    "convert",
    "create_model",
    "functional",
    "list_models",
    "load",
    "warm_up",
]
