"""Shell completion: the names that begin with what is typed so far."""

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Complete = Callable[[str], list[str]]


def _names_of(module: str, names: Callable[[Any], Iterable[str]]) -> Complete:
    """Completes names of a module of flashcaps, which is imported when Tab is pressed."""

    def complete(incomplete: str) -> list[str]:
        found = names(importlib.import_module(f"..{module}", __package__))
        return [name for name in found if name.startswith(incomplete)]

    return complete


def run_names(incomplete: str) -> list[str]:
    """Run folders and weights files here."""
    folders = [str(path.parent) for path in Path("runs").glob("*/config.json")]
    weights = [str(path) for pattern in ("*.safetensors", "*.safetensors.xz") for path in Path().glob(pattern)]
    return [name for name in sorted(folders) + sorted(weights) if name.startswith(incomplete)]


recipe_names = _names_of("training.recipe", lambda module: module.list_recipes())
model_names = _names_of("models", lambda module: module.list_models())
data_names = _names_of("data", lambda module: sorted(module.DATA))
figure_names = _names_of("analysis", lambda module: module.FIGURES)
algorithm_names = _names_of("routing", lambda module: module.ROUTING)
