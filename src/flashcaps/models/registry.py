"""Models by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..plugins import Registry
from ..routing.checks import nearest
from . import attention, baselines, discriminative, dynamic, em, heinsen
from .base import Model
from .shipped import shipped_files
from .stored import find_weights, read_weights
from .timm import for_loading


class Summary(NamedTuple):
    name: str
    parameters: int
    paper: str  # and the table or section
    about: str


# Specs hold numbers. `changes` maps an override to what it does to them, `about` is "paper, table: what it is", and
# `build()` makes the model.
MODELS: Registry[Any] = Registry("flashcaps.models", {
    **dynamic.MODELS, **em.MODELS, **attention.MODELS, **heinsen.MODELS, **discriminative.MODELS, **baselines.MODELS,
})  # fmt: skip
Builder = TypeVar("Builder", bound=Callable[[], Any])


def register(builder: Builder) -> Builder:
    """Adds the model that a function of another package returns under the function's name. `about` is its docstring."""
    name = builder.__name__
    if name in MODELS:
        raise ValueError(f"register: there is a model {name!r} already; give the builder another name")
    MODELS[name] = replace(builder(), about=builder.__doc__ or "")
    return builder


def list_models(pattern: str = "*") -> list[str]:
    """Names that match, in alphabetical order."""
    return sorted(name for name in MODELS if fnmatchcase(name, pattern))


def create_model(name: str, *, pretrained: bool | str | os.PathLike[str] = False, **overrides: Any) -> Model:
    """The model of that name with initial weights. `models/overrides.py` has what each family can override.

    pretrained: True starts from the weights that come with flashcaps, a path from those of a run or a file. The
    overrides they were trained with apply as well. With classes=, all weights are kept except the class layer's.
    """
    if pretrained is False:
        return build(name, overrides)
    if pretrained is True and name not in shipped_files():
        known = ", ".join(sorted(shipped_files().keys() & MODELS.keys()))
        raise ValueError(f"pretrained: no weights of {name} come along, those of {known} do; give the path of a run")
    path = shipped_files()[name] if pretrained is True else find_weights(pretrained)
    stored, config = read_weights(path)
    if config["model"]["name"] != name:
        raise ValueError(f"pretrained: expected weights of {name}, got those of {config['model']['name']}, {path}")
    whole = for_loading(config["model"]["overrides"]) | overrides
    return fill(name, whole, stored, path, new_classes="classes" in overrides)


def build(name: str, overrides: dict[str, Any]) -> Model:
    """The model with these overrides and initial weights."""
    try:
        spec: Any = MODELS[name]
    except KeyError:
        close = nearest(name, MODELS)
        raise ValueError(f"name: there is no model {name!r}{close}; list_models() has all of them") from None
    for key in overrides:
        if key not in spec.changes:
            known = ", ".join(spec.changes)
            raise TypeError(f"{key}: {name} has no such override{nearest(key, spec.changes)} (it has {known})")
    for key in sorted(overrides, key=lambda k: k != "routing"):  # the others refine what another routing resets
        spec = spec.changes[key](spec, overrides[key])
    model = spec.build()
    model.name, model.overrides = name, {k: plain(v) for k, v in overrides.items()}
    return model


def fill(
    name: str, overrides: dict[str, Any], stored: dict[str, Tensor], source: Path, *, new_classes: bool
) -> Model:
    """The model with the stored weights. new_classes: except in layers whose shape depends on the number of classes."""
    fresh: tuple[str, ...] = ()
    if new_classes:
        with torch.device("meta"):
            two, three = (build(name, overrides | {"classes": n}).state_dict() for n in (2, 3))
        fresh = tuple(key[: key.rfind(".") + 1] or key for key in two if two[key].shape != three[key].shape)
    model = build(name, overrides)
    kept = {key: x for key, x in model.state_dict().items() if not key.startswith(fresh)}
    for key, x in kept.items():
        got = tuple(stored[key].shape) if key in stored else "none"
        if got != tuple(x.shape):
            raise ValueError(f"{source}: {key}: expected {tuple(x.shape)} for {overrides}, got {got}; "
                             "only classes= can change the shape of trained weights")
    model.load_state_dict({key: stored[key] for key in kept}, strict=False)
    return model


def plain(value: Any) -> Any:
    """A value as JSON stores it. Of a module without `rebuild` only the class is named; it has to be given again."""
    if isinstance(value, nn.Module):
        return getattr(value, "rebuild", {"module": type(value).__name__})
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def model_summary(name: str) -> Summary:
    """What `flashcaps models` prints: size and origin, without allocating a weight."""
    with torch.device("meta"):
        model = create_model(name)
    paper, _, about = MODELS[name].about.partition(": ")
    return Summary(name, sum(p.numel() for p in model.parameters()), paper, about.strip().rstrip("."))
