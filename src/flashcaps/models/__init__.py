"""The papers' networks, one file per paper: builders that contain numbers, not logic."""

from . import attention, baselines, discriminative, dynamic, em, heinsen  # noqa: F401  (each registers its models)
from ._network import CapsuleNetwork, Capsules
from ._plain import Plain, PlainNetwork
from ._registry import Summary, create_model, list_models, model_summary, register
from ._sentiment import Sentiment, SentimentNetwork
from ._specs import ConvCaps, Dense, Primary, Route
from ._types import Model, Output

__all__ = [
    "CapsuleNetwork",
    "Capsules",
    "ConvCaps",
    "Dense",
    "Model",
    "Output",
    "Plain",
    "PlainNetwork",
    "Primary",
    "Route",
    "Sentiment",
    "SentimentNetwork",
    "Summary",
    "create_model",
    "list_models",
    "model_summary",
    "register",
]
