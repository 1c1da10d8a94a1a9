"""Overrides: how a word given to `create_model` changes the numbers of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import nn

from ..nn.backbones import BACKBONES, Image
from ..routing import ROUTING
from ..routing.checks import check_choice, nearest
from .specs import Dense, Route
from .timm import PREFIX, Timm

T = TypeVar("T")
Change = Callable[[Any, Any], Any]  # (spec, value) -> spec


def changed(what: str, spec: T, changes: Mapping[str, Any]) -> T:
    """A spec with some numbers changed; a wrong name is answered with the nearest right one."""
    known = [f.name for f in fields(spec)]  # type: ignore[arg-type]
    for key in changes:
        if key not in known:
            has = f"(it has {', '.join(known)})"
            raise TypeError(f"{what}: {type(spec).__name__} has no {key!r}{nearest(key, known)} {has}")
    return replace(spec, **changes)  # type: ignore[type-var]


def at_least_one(name: str) -> Change:
    """Set a field to a whole number, 1 or more."""

    def change(spec: Any, value: Any) -> Any:
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
        return replace(spec, **{name: value})

    return change


def probability(name: str) -> Change:
    """Set a field to a number from 0 up to 1."""

    def change(spec: Any, value: Any) -> Any:
        if not 0 <= value < 1:
            raise ValueError(f"{name}: expected a number from 0 up to, not including, 1, got {value!r}")
        return replace(spec, **{name: float(value)})

    return change


def image(spec: Any, value: Sequence[int]) -> Any:
    return replace(spec, image=check_image(value))


def check_image(value: Sequence[int]) -> Image:
    whole = isinstance(value, list | tuple) and all(isinstance(n, int) and n >= 1 for n in value)
    if not whole or len(value) != 3:
        raise ValueError(f"image: expected (channels, height, width), got {value!r}")
    c, h, w = value
    return c, h, w


def routing(spec: Any, value: str) -> Any:
    """Another algorithm brings its own options, iterations, pose and order of routing; the backend stays."""
    check_choice("routing", value, ROUTING)
    return spec if value == spec.route.routing else replace(spec, route=Route(value, backend=spec.route.backend))


def options(spec: Any, value: Mapping[str, Any]) -> Any:
    """Added to what the model has already."""
    return replace(spec, route=replace(spec.route, options={**spec.route.options, **value}))


def of_route(name: str) -> Change:
    return lambda spec, value: replace(spec, route=replace(spec.route, **{name: value}))


def backbone(spec: Any, value: str | Mapping[str, Any] | nn.Module) -> Any:
    """A name in `BACKBONES`, a module, or numbers to change: of the model's own, or of the one that "name" says.

    "timm:NAME", or {"timm": NAME, "pretrained": False}, is a network of timm.
    """
    if isinstance(value, str) and value.startswith(PREFIX):
        value = {"timm": value.removeprefix(PREFIX)}
    if isinstance(value, Mapping) and "timm" in value:
        return replace(spec, backbone=changed("backbone", Timm(value["timm"]), value))
    if isinstance(value, Mapping) and "module" in value:
        raise ValueError(f"backbone: this model was built on a module no name rebuilds, {value['module']}; give it "
                         "again: load(path, backbone=module), or create_model(..., backbone=module)")
    if isinstance(value, Mapping):
        numbers = dict(value)
        base = backbone(spec, numbers.pop("name")).backbone if "name" in numbers else spec.backbone
        return replace(spec, backbone=changed("backbone", base, numbers))
    if isinstance(value, nn.Module):
        return replace(spec, backbone=value)
    if value not in BACKBONES:
        names = ", ".join(map(repr, BACKBONES))
        raise ValueError(
            f"backbone: expected one of {names}, a dict or an nn.Module, got {value!r}{nearest(str(value), BACKBONES)}"
        )
    return replace(spec, backbone=BACKBONES[value])


def primary(spec: Any, value: Mapping[str, Any]) -> Any:
    return replace(spec, primary=changed("primary", spec.primary, value))


def hidden(spec: Any, value: Sequence[int | Sequence[int]]) -> Any:
    """Dense layers below the class layer, the first in its place: it looks at the children the class layer had."""
    *below, top = spec.layers
    for k, size in enumerate(value):
        capsules, dim = (size, top.dim) if isinstance(size, int) else size
        below.append(Dense(capsules, dim, top.children if k == 0 else "each"))
    return replace(spec, layers=(*below, replace(top, children="each") if value else top))


def decoder(spec: Any, value: bool | Sequence[int]) -> Any:
    """True is the model's own, or dynamic's 512 and 1,024 units; False is none; a list gives the widths."""
    widths = isinstance(value, list | tuple) and all(isinstance(n, int) and n >= 1 for n in value)
    if not (widths or value is None or isinstance(value, bool)):
        raise ValueError(f"decoder: expected True, False or a list of widths, got {value!r}")
    if value is True:
        return spec if spec.decoder is not None else replace(spec, decoder=(512, 1024))
    return replace(spec, decoder=None if value is False or value is None else tuple(value))


def original(spec: Any, value: bool) -> Any:
    """Start and primary capsules after dynamic's public code; False leaves the model's own."""
    return replace(spec, start="original") if value else spec


TEXT: dict[str, Change] = {name: at_least_one(name) for name in ("classes", "layers", "width")}
ROUTE: dict[str, Change] = {
    "routing": routing,
    "iterations": of_route("iterations"),
    "pose": of_route("pose"),
    "concurrent": of_route("concurrent"),
    "backend": of_route("backend"),
    "options": options,
}
CAPSULES: dict[str, Change] = {
    "image": image,
    "classes": at_least_one("classes"),
    **ROUTE,
    "backbone": backbone,
    "primary": primary,
    "hidden": hidden,
    "decoder": decoder,
    "original": original,
}
