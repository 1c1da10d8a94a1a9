"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from ..plugins import Registry
from ..routing.checks import nearest
from . import attention, baselines, discriminative, dynamic, em, heinsen
from .base import Model
from .overrides import Change


class Spec(Protocol):
    """A model as numbers. changes: for every override, what it does to them."""

    changes: ClassVar[dict[str, Change]]

    def build(self) -> Model: ...


class Summary(NamedTuple):
    name: str
    parameters: int
    paper: str  # and the table or section
    about: str


Builder = TypeVar("Builder", bound=Callable[[], Spec])
BUILDERS: tuple[Callable[[], Spec], ...] = (
    dynamic.capsnet_mnist, dynamic.capsnet_multimnist, dynamic.capsnet_affnist, dynamic.capsnet_cifar10,
    dynamic.capsnet_smallnorb, dynamic.capsnet_svhn, dynamic.capsnet_tiny, dynamic.dynamic_simple_cifar10,
    dynamic.dynamic_simple_cifar100, dynamic.dynamic_resnet_cifar10, dynamic.dynamic_resnet_cifar100,
    dynamic.dynamic_diverse,
    em.em_smallnorb, em.em_cifar10, em.em_cifar100, em.em_resnet_cifar10, em.em_resnet_cifar100,
    attention.attention_simple_cifar10, attention.attention_simple_cifar100, attention.attention_resnet_cifar10,
    attention.attention_resnet_cifar100, attention.attention_diverse_matrix, attention.attention_diverse_vector,
    attention.attention_diverse_wide,
    heinsen.heinsen_smallnorb, heinsen.heinsen_sst5, heinsen.heinsen_sst2,
    discriminative.discriminative_mnist, discriminative.discriminative_fashion, discriminative.discriminative_cifar10,
    discriminative.discriminative_multimnist,
    baselines.cnn_mnist, baselines.cnn_multimnist, baselines.cnn_affnist, baselines.cnn_cifar10, baselines.cnn_cifar100,
    baselines.cnn_smallnorb, baselines.cnn_diverse_pool, baselines.cnn_diverse_fc, baselines.resnet18_cifar10,
    baselines.resnet18_cifar100, baselines.pool_sst5, baselines.pool_sst2, baselines.mix_sst5, baselines.mix_sst2,
)  # fmt: skip
MODELS: Registry[Callable[[], Spec]] = Registry("flashcaps.models", {b.__name__: b for b in BUILDERS})


def register(builder: Builder) -> Builder:
    """Add a builder of your own under its name. Its docstring is "paper: what the model is"."""
    name = builder.__name__
    if name in MODELS:
        raise ValueError(f"register: there is a model {name!r} already; give the builder another name")
    MODELS[name] = builder
    return builder


def list_models(pattern: str = "*") -> list[str]:
    """Names that match, in alphabetical order."""
    return sorted(name for name in MODELS if fnmatchcase(name, pattern))


def create_model(name: str, **overrides: Any) -> Model:
    """The model of that name, its weights fresh. What each family can override is in `models/overrides.py`."""
    if name not in MODELS:
        raise ValueError(f"name: there is no model {name!r}{nearest(name, MODELS)}; list_models() has all of them")
    spec: Any = MODELS[name]()
    for key in overrides:
        if key not in spec.changes:
            known = ", ".join(spec.changes)
            raise TypeError(f"{key}: {name} has no such override{nearest(key, spec.changes)} (it has {known})")
    for key in sorted(overrides, key=lambda k: k != "routing"):  # the others refine what another routing resets
        spec = spec.changes[key](spec, overrides[key])
    model = spec.build()
    model.name, model.overrides = name, {k: plain(v) for k, v in overrides.items()}
    return model


def plain(value: Any) -> Any:
    """A value as JSON keeps it. A module that cannot say how to rebuild it is named only, and has to be given again."""
    if isinstance(value, nn.Module):
        return getattr(value, "rebuild", {"module": type(value).__name__})
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def model_summary(name: str) -> Summary:
    """What `flashcaps models` prints: size and origin, without allocating a weight."""
    with torch.device("meta"):
        model = create_model(name)
    paper, _, about = (MODELS[name].__doc__ or "").partition(": ")
    return Summary(name, sum(p.numel() for p in model.parameters()), paper, about.strip().rstrip("."))
