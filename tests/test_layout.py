"""The five rules of the tree (see CONTRIBUTING.md), each with a planted violation that it finds.

1. Rooms import only rooms before them in `ORDER`; data knows plugins and routing/checks alone. Imports inside functions
   and for types count, too, and a module that `ORDER` does not name is an error.
2. Nothing whose name begins with an underscore is imported from another room.
3. nn/ names no algorithm, but as a default argument and in docstrings.
4. Registration is a literal dict, never the side effect of an import.
5. training never imports analysis.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flashcaps.routing import ROUTING

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "flashcaps"
FILES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))
ORDER = ("plugins", "routing", "kernels", "nn", "functional", "models", "data", "training", "deploy", "__init__",
         "analysis", "demo", "cli", "__main__")  # fmt: skip
DATA_KNOWS = ("data", "routing.checks", "plugins")
ROOT_MODULES = {"__init__", "__main__", "functional"}
MORE_AT_ROOT = 3
LINES = 800

Check = Callable[[str, str], list[str]]  # (path under src/flashcaps, source) -> what breaks the rule


def room_of(path: str) -> str:
    """The folder of a file, or the stem of one that lies at the root."""
    return path.split("/")[0].removesuffix(".py")


def imported(path: str, source: str) -> Iterator[str]:
    """Dotted names under flashcaps that a file imports, wherever the statement stands: "routing.em.EM"."""
    package = ["flashcaps", *path.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        for name in names:
            if name.split(".")[0] == "flashcaps":
                yield name.removeprefix("flashcaps").removeprefix(".")


def target(name: str) -> str:
    """The room, or module at the root, that holds a dotted name; a name of the package itself is __init__'s."""
    first = name.split(".")[0]
    return first if (SRC / first).is_dir() or (SRC / f"{first}.py").is_file() else "__init__"


def upward(path: str, source: str) -> list[str]:
    """Rules 1 and 5: in `ORDER`, analysis comes after training."""
    room = room_of(path)
    if room not in ORDER:
        return [f"{path}: ORDER does not name {room}"]
    found = []
    for name in imported(path, source):
        there = target(name)
        known = there in ORDER and ORDER.index(there) <= ORDER.index(room)
        if room == "data":
            known = any(f"{name}.".startswith(f"{allowed}.") for allowed in DATA_KNOWS)
        if not known:
            found.append(f"{path} imports {name}")
    return found


def private(path: str, source: str) -> list[str]:
    """Rule 2."""
    return [f"{path} imports {name}" for name in imported(path, source) if target(name) != room_of(path)
            and any(part.startswith("_") and not part.endswith("__") for part in name.split("."))]  # fmt: skip


def named_algorithms(path: str, source: str) -> list[str]:
    """Rule 3: an algorithm's name as text, but in a docstring or as a default; or its class in a comparison."""
    if room_of(path) != "nn":
        return []
    tree = ast.parse(source)
    allowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            allowed |= {inner for d in (*node.args.defaults, *node.args.kw_defaults) if d for inner in ast.walk(d)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            allowed.add(node.value)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in allowed]
    found = [f"{path}:{node.lineno} names {node.value}" for node in names if node.value in list(ROUTING)]
    classes = {algorithm.__name__ for algorithm in ROUTING.values()}
    for node in ast.walk(tree):
        asks = isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass")
        if asks or isinstance(node, ast.Compare | ast.match_case):
            words = {getattr(inner, "id", getattr(inner, "attr", "")) for inner in ast.walk(node)}
            found += [f"{path} compares with {name}" for name in sorted(words & classes)]
    return found


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: no body of a function."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from at_import(node)


def side_effects(path: str, source: str) -> list[str]:
    """Rule 4: a module imported and not used, an entry added to a dict, a decorator that registers."""
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = []
    for node in at_import(tree):
        line = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
            found += [f"{line} imports {name} for a side effect" for name in names if name not in used]
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Subscript) for t in node.targets):
            found.append(f"{line} adds an entry: {ast.unparse(node)}")
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            found += [f"{line} registers {node.name}" for d in decorators if ast.unparse(d).startswith("register")]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
            if name.startswith("register") or name.endswith((".update", ".setdefault")):
                found.append(f"{line} adds entries: {ast.unparse(node)}")
    return found


def absolute(path: str, source: str) -> list[str]:
    """Imports of flashcaps inside flashcaps are relative."""
    tree = ast.parse(source)
    found = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    found += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return [f"{path} imports {name}" for name in found if name.split(".")[0] == "flashcaps"]


def long_files(path: str, source: str) -> list[str]:
    count = len(source.splitlines())
    return [f"{path} has {count} lines"] if count > LINES else []


RULES: tuple[Check, ...] = (upward, private, named_algorithms, side_effects, absolute, long_files)
PLANTED: dict[str, tuple[Check, str, str]] = {
    "a higher room": (upward, "routing/em.py", "from ..nn.losses import margin_loss"),
    "a higher room inside a function": (upward, "nn/stack.py", "def f():\n    from ..models import create_model"),
    "a higher room for types": (upward, "kernels/em.py", "if TYPE_CHECKING:\n    from ..nn import base"),
    "the package itself": (upward, "training/loop.py", "from .. import __version__"),
    "a file in no room": (upward, "helpers.py", "import torch"),
    "a file in no known room": (upward, "utils/text.py", "import torch"),
    "data and a helper of routing": (upward, "data/cifar.py", "from ..routing.math import squash"),
    "data and training": (upward, "data/cifar.py", "from ..training.batches import Batch"),
    "a private module": (private, "nn/stack.py", "from ..routing._math import squash"),
    "a private function": (private, "nn/stack.py", "from ..routing.math import _squash"),
    "a comparison": (named_algorithms, "nn/stack.py", 'def f(self):\n    return self.name == "heinsen"'),
    "a lookup": (named_algorithms, "nn/stack.py", 'LOSS = {"em": "spread"}'),
    "a branch on a class": (named_algorithms, "nn/stack.py", "if isinstance(x, EM): pass"),
    "an import not used": (side_effects, "models/__init__.py", "from . import dynamic  # noqa: F401"),
    "a decorator": (side_effects, "models/em.py", "from .registry import register\n@register\ndef em(): ..."),
    "an entry added": (side_effects, "data/images.py", 'from . import DATA\nDATA["images"] = 1'),
    "entries added": (side_effects, "data/images.py", "from . import DATA\nDATA.update(images=1)"),
    "a figure while training": (upward, "training/loop.py", "def f():\n    from ..analysis import margin"),
    "a figure by its name": (upward, "training/loop.py", 'import_module("flashcaps.analysis.routing")'),
    "an absolute import": (absolute, "nn/stack.py", "from flashcaps.routing import ROUTING"),
    "a long file": (long_files, "nn/stack.py", "\n" * (LINES + 1)),
}  # fmt: skip
KEPT = '''"""A layer of "em" capsules."""
from ..routing import ROUTING
from .stack import CapsuleStack

__all__ = ["CapsuleStack"]


class Layer:
    def __init__(self, routing: str = "dynamic") -> None:
        """Routes by "attention" or any other."""
        self.routing = ROUTING[routing]()
'''


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_its_rules(rule: Check) -> None:
    broken = [line for path in FILES for line in rule(path, (SRC / path).read_text())]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_violation_is_found(planted: str) -> None:
    rule, path, source = PLANTED[planted]
    assert rule(path, source)


def test_what_is_allowed_passes() -> None:
    assert not [line for rule in RULES for line in rule("nn/layer.py", KEPT)]
    assert {rule for rule, _, _ in PLANTED.values()} == set(RULES)


def crowded(names: list[str]) -> bool:
    return len(set(names) - ROOT_MODULES) > MORE_AT_ROOT


def test_few_modules_lie_at_the_root() -> None:
    assert not crowded([path.stem for path in SRC.glob("*.py")])
    assert crowded([*ROOT_MODULES, "a", "b", "c", "d"])


def untested(folder: str, tests: Path) -> list[str]:
    """Modules of a room without tests/ROOM/test_STEM.py."""
    stems = [path.stem for path in sorted((SRC / folder).glob("*.py")) if path.stem != "__init__"]
    return [stem for stem in stems if not (tests / folder / f"test_{stem}.py").is_file()]


@pytest.mark.parametrize("folder", ["routing", "kernels"])
def test_every_algorithm_and_every_twin_has_a_test(folder: str, tmp_path: Path) -> None:
    assert not untested(folder, TESTS)
    assert set(untested(folder, tmp_path)) >= set(ROUTING)
