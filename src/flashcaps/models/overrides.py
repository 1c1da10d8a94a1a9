"""Overrides: how a word given to `create_model` changes the numbers of a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import nn

from ..nn.backbones import BACKBONES
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


def number(name: str, fits: Callable[[Any], bool], expected: str) -> Change:
    """Set a field to a number that fits."""

    def change(spec: Any, value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"{name}: expected {expected}, got {value!r}")
        return replace(spec, **{name: value})

    return change


def whole(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def image(spec: Any, value: Sequence[int]) -> Any:
    if not isinstance(value, list | tuple) or not all(map(whole, value)) or len(value) != 3:
        raise ValueError(f"image: expected (channels, height, width), got {value!r}")
    return replace(spec, image=tuple(value))


def routing(spec: Any, value: str) -> Any:
    """Another algorithm has its own options, iterations, pose and order of routing. The backend is kept."""
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
        names, close = ", ".join(map(repr, BACKBONES)), nearest(str(value), BACKBONES)
        raise ValueError(f"backbone: expected one of {names}, a dict or an nn.Module, got {value!r}{close}")
    return replace(spec, backbone=BACKBONES[value])


def primary(spec: Any, value: Mapping[str, Any]) -> Any:
    return replace(spec, primary=changed("primary", spec.primary, value))


def hidden(spec: Any, value: Sequence[int | Sequence[int]]) -> Any:
    """Adds dense layers below the class layer. The first one takes the children that the class layer had."""
    *below, top = spec.layers
    for k, size in enumerate(value):
        capsules, dim = (size, top.dim) if isinstance(size, int) else size
        below.append(Dense(capsules, dim, top.children if k == 0 else "each"))
    return replace(spec, layers=(*below, replace(top, children="each") if value else top))


def decoder(spec: Any, value: bool | Sequence[int]) -> Any:
    """True is the model's own, or dynamic's 512 and 1,024 units; False is none; a list gives the widths."""
    widths = isinstance(value, list | tuple) and all(map(whole, value))
    if not (widths or value is None or isinstance(value, bool)):
        raise ValueError(f"decoder: expected True, False or a list of widths, got {value!r}")
    if value is True:
        return spec if spec.decoder is not None else replace(spec, decoder=(512, 1024))
    return replace(spec, decoder=None if value is False or value is None else tuple(value))


def original(spec: Any, value: bool) -> Any:
    """Initial weights and primary capsules of dynamic's public code; False keeps the model's own."""
    return replace(spec, start="original", primary=replace(spec.primary, shares=None, shift=0.1)) if value else spec


TEXT = {name: number(name, whole, "a whole number of at least 1") for name in ("classes", "layers", "width")}
ROUTE: dict[str, Change] = {
    "routing": routing,
    **{name: of_route(name) for name in ("iterations", "pose", "concurrent", "backend")},
    "options": options,
}
PLAIN: dict[str, Change] = {
    "image": image,
    "classes": TEXT["classes"],
    "dropout": number("dropout", lambda p: 0 <= p < 1, "a number from 0 up to, not including, 1"),
}
CAPSULES: dict[str, Change] = {
    "image": image,
    "classes": TEXT["classes"],
    **ROUTE,
    "backbone": backbone,
    "primary": primary,
    "hidden": hidden,
    "decoder": decoder,
    "original": original,
}
