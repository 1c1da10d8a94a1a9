"""The public surface as text: every public name with its signature and defaults.

    python -m tests.surface        # writes tests/surface.txt anew; what changed goes into CHANGELOG.md
"""

import dataclasses
import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flashcaps
from flashcaps import ROUTING, data, functional
from flashcaps.cli import app

FILE = Path(__file__).parent / "surface.txt"
MODULES = {"flashcaps": flashcaps, "flashcaps.functional": functional, "flashcaps.data": data}
METHODS = ("__init__", "forward", "step", "to", "select", "sample", "at", "fixed", "order", "stream")


def signature(function: Any) -> str:
    """(name: type = default, ...) -> type, without self; the same text whatever the version of Python."""
    found = inspect.signature(function)
    words, starred = [], False
    for p in found.parameters.values():
        if p.name in ("self", "_cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and not starred:
            words.append("*")
        starred = starred or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        typed = "" if p.annotation is p.empty else f": {written(p.annotation)}"
        default = "" if p.default is p.empty else f" = {getattr(p.default, '__name__', repr(p.default))}"
        words.append(f"{star}{p.name}{typed}{default}")
    given = "" if found.return_annotation is found.empty else f" -> {written(found.return_annotation)}"
    return f"({', '.join(words)}){given}"


def written(annotation: Any) -> str:
    """A type as it is written in the source."""
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, types.UnionType):  # has a name from Python 3.14 on, which is not how it is written
        return repr(text)
    return text if isinstance(text, str) else getattr(text, "__name__", repr(text))


def describe(name: str, value: Any) -> list[str]:
    """One line for a function or a value, one more for each method of a class."""
    if isinstance(value, types.ModuleType):
        return [f"{name} (module)"]
    if inspect.isclass(value):
        if hasattr(value, "_fields"):  # a named tuple: its fields are what it is called with
            return [f"{name}{signature(value.__new__)}"]
        bases = [base for base in value.__mro__ if base.__module__.startswith("flashcaps")]
        methods = [m for m in METHODS if any(m in vars(base) for base in bases)]
        return [f"class {name}", *(f"  {name}.{m}{signature(getattr(value, m))}" for m in methods)]
    if callable(value):
        return [f"{name}{signature(value)}"]
    if isinstance(value, Mapping):
        return [f"{name}: {', '.join(value)}"]
    return [f"{name} = {value!r}"]


def options(name: str, routing: type) -> str:
    """What a layer of this algorithm takes beside its sizes."""
    fields = ", ".join(f"{f.name}={f.default!r}" for f in dataclasses.fields(routing))
    return f"routing {name!r}: {fields}"


def commands() -> list[str]:
    """Every command with its options."""
    from typer.main import get_command

    group: Any = get_command(app)
    lines = []
    for name, command in sorted(group.commands.items()):
        for inner, sub in sorted(getattr(command, "commands", {"": command}).items()):
            words = [w for p in sub.params for w in (p.opts if p.param_type_name == "option" else [p.name.upper()])]
            lines.append(f"command {f'{name} {inner}'.strip()}: {' '.join(w for w in words if w != '--help')}")
    return lines


def surface() -> str:
    lines = [f"# made by `python -m tests.surface`; flashcaps {flashcaps.__version__}"]
    for module, content in MODULES.items():
        lines += ["", f"# {module}"]
        for name in sorted(content.__all__):
            lines += describe(name, getattr(content, name))
    lines += ["", "# options of routing algorithms", *(options(n, r) for n, r in ROUTING.items())]
    lines += ["", "# commands", *commands()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(surface(), encoding="utf-8")
