"""Finished runs to compare: their algorithm, number of iterations and other overrides, grouped by schedule."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..models import create_model
from ..nn.stack import CapsuleStack
from ..nn.trace import iterations_of
from ..training.recipe import Recipe, read_recipe
from .figure import DoesNotApply, Run


class Facts(NamedTuple):
    """algorithm: "" for a plain network. changed: the overrides of the model but for its iterations."""

    recipe: Recipe
    algorithm: str
    iterations: int
    changed: dict[str, Any]


Rows = list[tuple[dict[str, Any], Facts]]  # records of finished runs with their facts


def facts(record: dict[str, Any]) -> Facts | None:
    """The facts of a record's recipe and overrides; None for an ensemble or a recipe that no longer exists."""
    if "members" in record:
        return None
    return _facts(record["recipe"], tuple(o for o in record["overrides"] if not o.startswith("train.seed=")))


@functools.cache
def _facts(name: str, overrides: tuple[str, ...]) -> Facts | None:
    try:
        recipe = read_recipe(name, overrides)
        routed = routed_by(recipe.model.name, recipe.model.overrides)
    except (ValueError, TypeError, OSError):
        return None
    return Facts(recipe, *routed, {k: v for k, v in recipe.model.overrides.items() if k != "iterations"})


def routed_by(model: str, overrides: Mapping[str, Any]) -> tuple[str, int]:
    """The algorithm of a model's class layer and its iterations, ("", 0) for a plain network."""
    with torch.device("meta"):  # no weight is allocated
        stack = getattr(create_model(model, **overrides), "capsules", None)
    return (stack.capsule_layers()[-1].name, iterations_of(stack)) if isinstance(stack, CapsuleStack) else ("", 0)


def known(run: Run) -> Rows:
    pairs = ((record, facts(record)) for record in run.records)
    return [(record, f) for record, f in pairs if f is not None]


def comparable(run: Run) -> Rows:
    """The known runs on the same data as this one."""
    if run.recipe is None:
        raise DoesNotApply("a run of a recipe is needed; this checkpoint names none")
    return [(record, f) for record, f in known(run) if f.recipe.data.name == run.recipe.data.name]


def accuracy(record: dict[str, Any]) -> float:
    """In percent, whether accuracy or error was stored."""
    return record["value"] if "accuracy" in record["metric"] else 100 - record["value"]


def algorithm_name(f: Facts) -> str:
    return f.algorithm or "plain CNN"


def trained_alike(rows: Rows, key: Callable[[Recipe], Any], bar: Callable[[Facts], Any]) -> Rows:
    """The rows with the same `key` that make the most bars, so that no mean mixes runs of 10 and of 350 epochs."""
    groups: dict[str, Rows] = {}
    for record, f in rows:
        groups.setdefault(repr(key(f.recipe)), []).append((record, f))
    return max(groups.values(), key=lambda group: len({bar(f) for _, f in group}), default=[])


def length(recipe: Recipe) -> tuple[Any, ...]:
    """How long a run trains; losses, optimisers and their schedules are each model's own."""
    spec = recipe.train
    return spec.epochs, spec.steps, spec.batch, spec.stop_error, spec.select


def not_measured(absent: dict[str, str]) -> str:
    """Which runs are missing (name -> arguments of `flashcaps train`), and how to add them."""
    words = [name if name == command else f"{name} ({command})" for name, command in absent.items()]
    return f"not measured yet: {', '.join(words)}; flashcaps train each, and give the folders with --beside"


def missing_sentence(absent: dict[str, str]) -> str:
    """`not_measured` as the last sentence of a caption; "" where nothing is missing."""
    return f" N{not_measured(absent)[1:]}." if absent else ""
