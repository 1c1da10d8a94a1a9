"""Everything public that is fuzzed, by name; case NUMBER belongs to target NUMBER modulo their count."""

from collections.abc import Callable

from . import on_data, on_functions, on_layers
from .draw import Draw
from .judge import Case

TARGETS: dict[str, Callable[[Draw], Case]] = on_functions.TARGETS | on_layers.TARGETS | on_data.TARGETS
NAMES = sorted(TARGETS)


def make_case(seed: int, number: int) -> tuple[str, Case]:
    """Targets take turns; what a case is depends on (seed, number) alone."""
    name = NAMES[number % len(NAMES)]
    return name, TARGETS[name](Draw(f"{seed}/{name}/{number}"))
