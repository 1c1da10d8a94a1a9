"""What the shell offers when Tab is pressed: names, by what is typed so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def _beginning(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _recipes() -> list[str]:
    from ..training.recipe import list_recipes

    return list_recipes()


def _models() -> list[str]:
    from ..models import list_models

    return list_models()


def _data() -> list[str]:
    from ..data import DATA

    return sorted(DATA)


def _figures() -> list[str]:
    from ..analysis import FIGURES

    return list(FIGURES)


def _algorithms() -> list[str]:
    from ..routing import ROUTING

    return list(ROUTING)


def _runs() -> list[str]:
    """Run folders here, and whatever else the shell would offer: weights files."""
    folders = [str(path.parent) for path in Path("runs").glob("*/config.json")]
    weights = [*Path().glob("*.safetensors"), *Path().glob("*.safetensors.xz")]
    return sorted(folders) + sorted(str(path) for path in weights)


recipe_names = _beginning(_recipes)
model_names = _beginning(_models)
data_names = _beginning(_data)
figure_names = _beginning(_figures)
algorithm_names = _beginning(_algorithms)
run_names = _beginning(_runs)
