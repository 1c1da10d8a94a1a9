"""The papers' networks, one file per paper: numbers, not logic."""

from .base import Model, Output
from .baselines import Plain, PlainNetwork
from .network import CapsuleNetwork, Capsules
from .registry import Summary, create_model, list_models, model_summary, register
from .sentiment import Sentiment, SentimentNetwork
from .specs import ConvCaps, Dense, Primary, Route

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
