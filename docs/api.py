"""Make docs/api.md from the docstrings: python -m docs"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "api.md"
MODULES: dict[str, tuple[str, ...] | None] = {  # module -> names, None for all in its __all__
    "flashcaps": None,
    "flashcaps.functional": None,
    "flashcaps.data": ("load_data", "Dataset", "Split"),
    "flashcaps.training.recipe": ("Recipe", "read_recipe", "make_recipe", "list_recipes"),
    "flashcaps.training.loop": ("train", "RunOptions", "Outcome", "Progress"),
    "flashcaps.training.evaluate": ("evaluate", "Evaluation", "wilson"),
    "flashcaps.training.routing_measure": ("measure_routing", "RoutingMeasure", "LayerRouting"),
    "flashcaps.training.checkpoint": ("load", "save_weights", "read_weights"),
    "flashcaps.deploy.predict": ("predict", "predict_batches", "find_pictures", "prepare", "Prediction", "Score",
                                 "predict_texts", "find_texts", "open_transformer"),
    "flashcaps.training.autosize": ("size_model", "own_recipe", "own_text_recipe", "Sized"),
    "flashcaps.training.memory": ("memory_needed", "memory_free", "memory_warning", "batch_that_fits"),
    "flashcaps.deploy.export": ("export_model", "open_exported", "quantise", "Report", "Quantised"),
    "flashcaps.deploy.hub": ("save_pretrained", "from_pretrained", "push_to_hub"),
    "flashcaps.analysis": ("open_run", "write_figures", "compare", "Run", "Drawn"),
    "flashcaps.training.results": ("read_results", "versions"),
    "flashcaps.training.environment": ("devices", "extras", "active_backends", "compare_backends"),
}
HEAD = """# API reference

Made from the docstrings by `python -m docs`. Axes: B batch, I lower capsules, J upper capsules, D pose. Figures are in
the [gallery](gallery.md), commands answer `--help`.
"""


def names_of(module: Any, names: tuple[str, ...] | None) -> list[str]:
    if names is not None:
        return list(names)
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]


def heading(name: str, thing: Any) -> str:
    """name(parameters) -> what it gives, defaults as they are written."""
    if not callable(thing):
        return name
    try:
        text = str(inspect.signature(thing))
    except ValueError:
        return name
    text = re.sub(r"(: |-> )(['\"])(.*?)\2", r"\1\3", text)  # annotations are strings, and no default looks like one
    text = re.sub(r"<function \S*<lambda> at \w+>", "...", text)
    text = re.sub(r"<(?:function|class) '?([\w.]+).*?>", r"\1", text)
    text = re.sub(r"<(?:[\w.]+\.)?(\w+) object at \w+>", r"\1()", text)
    text = re.sub(r"ForwardRef\('(.*?)'\)", r"\1", text)
    text = re.sub(r"\b(?:torch(?!\.device\b)|typing|collections|pathlib|flashcaps)\.(?:\w+\.)*(\w+)", r"\1", text)
    return name + text.removesuffix(" -> None")


def fields_of(thing: Any) -> str:
    if not (inspect.isclass(thing) and dataclasses.is_dataclass(thing)):
        return ""
    return f"Fields: {', '.join(f'`{f.name}`' for f in dataclasses.fields(thing))}.\n\n"


def methods_of(thing: Any) -> str:
    """Public methods and properties that a class, or a base of it in flashcaps, defines and documents."""
    if not inspect.isclass(thing):
        return ""
    members: dict[str, Any] = {}
    for base in reversed([base for base in thing.__mro__ if base.__module__.startswith("flashcaps")]):
        members |= vars(base)
    lines = []
    for name, member in members.items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = f".{name}" if isinstance(member, property) else f".{heading(name, function).replace('(self, ', '(')}"
        lines.append(f"- `{shown.replace('(self)', '()')}`: {first_paragraph(function)}")
    return "\n".join(lines) + "\n\n" if lines else ""


def first_paragraph(thing: Any) -> str:
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())


def own_doc(thing: Any) -> str:
    """Its docstring; a NamedTuple's made-up one is none."""
    raw = thing.__dict__.get("__doc__") if inspect.isclass(thing) else inspect.getdoc(thing)
    text = inspect.cleandoc(raw or "")
    if text.startswith(f"{getattr(thing, '__name__', '')}("):
        return ""
    return text


def body(thing: Any) -> str:
    """The docstring as Markdown: indented equations stay as they are printed."""
    text = own_doc(thing) if callable(thing) else ""
    return f"{text}\n\n" if text else ""


def dictionary(name: str, thing: Any) -> str:
    return f"`{name}` has {', '.join(f'`{key}`' for key in thing)}.\n\n" if isinstance(thing, dict) else ""


def page() -> str:
    parts = [HEAD]
    for path, names in MODULES.items():
        module = importlib.import_module(path)
        parts.append(f"## {path}\n\n{inspect.cleandoc(module.__doc__ or '')}\n")
        for name in names_of(module, names):
            thing = getattr(module, name)
            text = f"### {name}\n\n```text\n{heading(name, thing)}\n```\n\n"
            text += body(thing) + dictionary(name, thing) + fields_of(thing) + methods_of(thing)
            parts.append(text.rstrip() + "\n")
    return "\n".join(parts)
