"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from ..routing.checks import nearest
from . import attention, baselines, discriminative, dynamic, em, heinsen
from .base import Model
from .overrides import Change


class Spec(Protocol):
    """A model as numbers. changes: for every override, what it does to them. about: "paper, table: what it is"."""

    changes: ClassVar[dict[str, Change]]

    @property
    def about(self) -> str: ...

    def build(self) -> Model: ...


class Summary(NamedTuple):
    name: str
    parameters: int
    paper: str  # and the table or section
    about: str


MODELS: dict[str, Spec] = {
    **dynamic.MODELS, **em.MODELS, **attention.MODELS, **heinsen.MODELS, **discriminative.MODELS, **baselines.MODELS,
}  # fmt: skip
Builder = TypeVar("Builder", bound=Callable[[], Any])


def register(builder: Builder) -> Builder:
    """Add the model that a function of another package returns, under its name. Its docstring is `about`."""
    name = builder.__name__
    if name in MODELS:
        raise ValueError(f"register: there is a model {name!r} already; give the builder another name")
    MODELS[name] = replace(builder(), about=builder.__doc__ or "")
    return builder


def list_models(pattern: str = "*") -> list[str]:
    """Names that match, in alphabetical order."""
    return sorted(name for name in MODELS if fnmatchcase(name, pattern))


def create_model(name: str, **overrides: Any) -> Model:
    """The model of that name, its weights fresh. What each family can override is in `models/overrides.py`."""
    if name not in MODELS:
        raise ValueError(f"name: there is no model {name!r}{nearest(name, MODELS)}; list_models() has all of them")
    spec: Any = MODELS[name]
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
    paper, about = MODELS[name].about.split(": ", 1)
    return Summary(name, sum(p.numel() for p in model.parameters()), paper, about.strip().rstrip("."))
