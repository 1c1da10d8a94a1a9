"""Stems in step, imports one way, files that fit on a few screens."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "flashcaps"
FILES = sorted(SRC.rglob("*.py"))

# Lowest first: a module imports from its own level and from those before it.
LEVELS: list[set[str]] = [
    {"routing"},
    {"votes"},
    {"kernels"},
    {"losses", "capsule_layer", "layers", "stack", "heads", "alternation", "functional", "backbones"},
    {"models"},
    {"train", "evaluate", "checkpoint", "optim", "recipe", "recipes", "batches"},
    {"analysis", "demo"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def stems(folder: str) -> list[str]:
    return [path.stem for path in sorted((SRC / folder).glob("*.py")) if not path.stem.startswith("_")]


def part(path: Path) -> str:
    """The first name under flashcaps: a folder, or a file of its own."""
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The parts of flashcaps a file imports when it is itself imported or later, relative or not."""
    package = ("flashcaps", *path.relative_to(SRC).parts[:-1])
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(x for x in (base, node.module) if x)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("flashcaps.")}


def test_there_is_something_to_check() -> None:
    assert {"dynamic", "em", "attention", "heinsen", "discriminative"} <= set(stems("routing"))
    assert imported(SRC / "layers.py") >= {"routing", "votes", "capsule_layer"}
    assert "routing" in imported(SRC / "kernels" / "em.py")


@pytest.mark.parametrize("stem", stems("routing"))
def test_every_algorithm_has_a_test(stem: str) -> None:
    assert (TESTS / "routing" / f"test_{stem}.py").exists()


@pytest.mark.parametrize("stem", stems("kernels"))
def test_every_kernel_has_a_reference_and_a_test(stem: str) -> None:
    assert stem in stems("routing")
    assert (TESTS / "kernels" / f"test_{stem}.py").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_flow_downward(path: Path) -> None:
    here = part(path)
    if here in LEVEL:
        above = {name for name in imported(path) if LEVEL.get(name, -1) > LEVEL[here]}
        assert not above, f"{path.relative_to(SRC)} imports {', '.join(sorted(above))}"


@pytest.mark.parametrize("level", range(4), ids=["routing", "votes", "kernels", "layers"])
def test_the_core_imports_nothing_but_the_core(level: int) -> None:
    """Nothing of the first levels reaches for data, models or training, whatever those files are called."""
    core = set().union(*LEVELS[: level + 1])
    for path in FILES:
        if LEVEL.get(part(path)) == level:
            assert imported(path) <= core, path.relative_to(SRC)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
