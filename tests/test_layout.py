"""Stems in step, imports one way, files that fit on a few screens."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "flashcaps"
FILES = sorted(SRC.rglob("*.py"))

# Lowest first: a module imports from its own level and from those below. What is not named here trains and evaluates.
LEVELS: list[set[str]] = [
    {"routing", "data"},
    {"votes"},
    {"kernels"},
    {"losses", "capsule_layer", "layers", "stack", "heads", "alternation", "functional", "backbones"},
    {"models"},
    {"train", "evaluate"},
    {"cli", "demo", "__main__"},
]
PARTS = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
TRAINING = next(level for level, names in enumerate(LEVELS) if "train" in names)
LEVEL = {name: next((k for k, names in enumerate(LEVELS) if name in names), TRAINING) for name in PARTS}


def stems(folder: str) -> list[str]:
    return [path.stem for path in sorted((SRC / folder).glob("*.py")) if not path.stem.startswith("_")]


def name_of(path: Path) -> str:
    return str(path.relative_to(SRC))


def part(path: Path) -> str:
    """The first name under flashcaps: a folder, or a file of its own."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def is_script(node: ast.AST) -> bool:
    """`if __name__ == "__main__":` runs a file, and is no part of importing it."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def imported(path: Path) -> set[str]:
    """The parts of flashcaps a file imports, at once or inside a function, relative or not."""
    package = ("flashcaps", *path.relative_to(SRC).parts[:-1])
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not is_script(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(x for x in (base, node.module) if x)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("flashcaps.")} & PARTS


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


@pytest.mark.parametrize("path", [path for path in FILES if part(path) in PARTS], ids=name_of)
def test_imports_flow_downward(path: Path) -> None:
    above = {name for name in imported(path) if LEVEL[name] > LEVEL[part(path)]}
    assert not above, f"{name_of(path)} imports {', '.join(sorted(above))}"


def test_data_and_routing_know_nothing_of_the_rest() -> None:
    for path in FILES:
        if part(path) in LEVELS[0]:
            assert imported(path) <= {part(path)}, name_of(path)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
