"""Finished runs as figures need them: which algorithm, how many iterations, what else was changed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from ..models import create_model
from ..nn.stack import CapsuleStack
from ..training.recipe import Recipe, read_recipe
from .figure import DoesNotApply, Run
from .inside import iterations_of, layers_of


class Facts(NamedTuple):
    """algorithm: "" for a plain network. changed: the overrides of the model but for its iterations."""

    recipe: Recipe
    algorithm: str
    iterations: int
    changed: dict[str, Any]


def facts(record: dict[str, Any]) -> Facts | None:
    """What a record's recipe and overrides say; None for an ensemble, or where this version knows no such recipe."""
    if "members" in record:
        return None
    return _facts(record["recipe"], tuple(o for o in record["overrides"] if not o.startswith("train.seed=")))


@functools.cache
def _facts(name: str, overrides: tuple[str, ...]) -> Facts | None:
    try:
        recipe = read_recipe(name, overrides)
        with torch.device("meta"):  # no weight is allocated
            model: Any = create_model(recipe.model.name, **recipe.model.overrides)
    except (ValueError, TypeError, OSError):
        return None
    changed = {k: v for k, v in recipe.model.overrides.items() if k != "iterations"}
    stack = getattr(model, "capsules", None)
    if not isinstance(stack, CapsuleStack):
        return Facts(recipe, "", 0, changed)
    return Facts(recipe, layers_of(stack)[-1].name, iterations_of(stack), changed)


def comparable(run: Run) -> list[tuple[dict[str, Any], Facts]]:
    """The known runs on the same data as this one."""
    if run.recipe is None:
        raise DoesNotApply("a run of a recipe is needed; this checkpoint names none")
    found = []
    for record in run.records:
        known = facts(record)
        if known is not None and known.recipe.data.name == run.recipe.data.name:
            found.append((record, known))
    return found


def accuracy(record: dict[str, Any]) -> float:
    """In percent, whichever way round it was measured."""
    return record["value"] if "accuracy" in record["metric"] else 100 - record["value"]


def algorithm_name(name: str) -> str:
    return name or "plain CNN"
