"""Routing functions and losses."""

import inspect
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from flashcaps import functional as F
from flashcaps.functional import Routed

from ..cases import CASES
from ..cases import Case as Routine
from ..conftest import TOLERANCE
from .draw import Draw
from .judge import Case

PLAIN = 3.0  # votes up to this have results that fp64 must confirm; larger ones make routing a jump function


def routing(routine: Routine) -> Callable[[Draw], Case]:
    """A routing function with arguments that fit together, one of them sometimes spoiled."""

    def make(draw: Draw) -> Case:
        sizes = dict(zip("bijd", (draw.size(4), draw.size(6), draw.size(5), draw.size(6)), strict=True))
        dtype = draw.dtype()
        kind = draw.pick((None, "normal"))
        tensors: dict[str, Any] = {}
        for name, axes in routine.axes.items():
            x = draw.tensor([sizes[a] for a in axes], dtype, kind)
            if name == "activation":
                x = x.sigmoid()
            tensors[name] = x > -0.7 if name == "mask" else x
        arguments = tensors | routine.options | iterations(routine, draw)
        return Case(routine.function, arguments, gradient=draw.chance(0.6), check=agrees(routine, arguments))

    return make


def iterations(routine: Routine, draw: Draw) -> dict[str, Any]:
    """Another number of iterations, or the default eps, where the function has them."""
    more: dict[str, Any] = {}
    known = inspect.signature(routine.function).parameters
    if "iterations" in known and draw.chance(0.5):
        more["iterations"] = draw.random.randint(1, 5)
        if "inverse_temperature" in known:
            more["inverse_temperature"] = draw.pick((0.01, 1.0, F.inverse_temperature(more["iterations"])))
    if "eps" in known and draw.chance(0.5):
        more["eps"] = known["eps"].default
    return more


def agrees(routine: Routine, arguments: dict[str, Any]) -> Callable[[Any], str]:
    """Plain arguments give what fp64 gives."""

    def check(result: Routed) -> str:
        tensors = {k: x for k, x in arguments.items() if isinstance(x, Tensor)}
        floats = [x for x in tensors.values() if x.is_floating_point()]
        if any(x.is_meta for x in floats):
            return ""
        plain = all(x.numel() == 0 or x.abs().max() <= PLAIN for x in floats)
        if not plain or float(arguments.get("eps") or 1) < 1e-3 or len({x.dtype for x in floats}) > 1:
            return ""
        exact = arguments | {k: x.double() for k, x in tensors.items() if x.is_floating_point()}
        pose, wanted = result.pose, routine.function(**exact).pose
        if pose.shape != wanted.shape:
            return f"pose {tuple(pose.shape)}, in fp64 {tuple(wanted.shape)}"
        off = (pose.double() - wanted).abs().max().item() if pose.numel() else 0.0
        allowed = 20 * TOLERANCE[pose.dtype].output * max(1.0, wanted.abs().max().item() if pose.numel() else 0.0)
        # LayerNorm of a pose with hardly any spread magnifies rounding without bound.
        normed = routine.function is F.attention_routing and routine.options.get("norm", True)
        return "" if off <= allowed or normed else f"pose off by {off:.3g} from fp64's"

    return check


def update(draw: Draw) -> Case:
    b, i, j, d = draw.size(4), draw.size(5), draw.size(4), draw.size(4)
    dtype = draw.dtype()
    return Case(F.discriminative_update, {
        "coefficients": draw.tensor((i, j), dtype),
        "votes": draw.tensor((b, i, j, d), dtype),
        "labels": draw.labels(b, j),
        "rate": draw.pick((1e-4, 0.1)),
        "strength": draw.pick((0.0, 1e-3)),
        "penalty": draw.pick(("l1", "l2")),
    })  # fmt: skip


def elementwise(function: Callable[..., Any]) -> Callable[[Draw], Case]:
    """squash and length: any shape, any axis."""

    def make(draw: Draw) -> Case:
        shape = [draw.size(5, 0.08) for _ in range(draw.random.randint(0, 5))]
        name = next(iter(inspect.signature(function).parameters))
        arguments = {name: draw.tensor(shape), "dim": draw.pick((-1, 0, len(shape) - 1, -len(shape) or -1, 7, "0"))}
        more = {"check": shorter_than_one} if function is F.squash else {}
        return Case(function, arguments, gradient=draw.chance(0.7), **more)

    return make


def shorter_than_one(result: Tensor) -> str:
    longest = 0.0 if result.is_meta or not result.numel() else result.abs().max().item()
    return "" if longest <= 1 + 1e-6 else f"squashed to {longest:.3g}"


def loss(function: Callable[..., Tensor], **options: tuple[float, ...]) -> Callable[[Draw], Case]:
    """A loss of scores and targets, its first two arguments; options: numbers to pick from."""
    first, second, *_ = inspect.signature(function).parameters

    def make(draw: Draw) -> Case:
        b, k = draw.size(6), draw.size(6)
        arguments: dict[str, Any] = {first: draw.tensor((b, k)), second: draw.labels(b, k)}
        arguments |= {name: draw.pick(values) for name, values in options.items()}
        return Case(function, arguments, gradient=draw.chance(0.6), check=not_negative)

    return make


def not_negative(result: Tensor) -> str:
    sound = result.is_meta or (result.ndim == 0 and result >= 0)
    return "" if sound else f"a loss of shape {tuple(result.shape)}, {result}"


def pictures(draw: Draw) -> Case:
    shape = [draw.size(4) for _ in range(4)]
    dtype = draw.dtype()
    arguments: dict[str, Any] = {"output": draw.tensor(shape, dtype), "image": draw.tensor(shape, dtype)}
    return Case(F.reconstruction_loss, arguments, gradient=draw.chance(0.6), check=not_negative)


def schedule(function: Callable[..., Any], name: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        value = draw.pick((0, 1, 3, 0.5, 10**9, -1, -(10**12), math.nan, "1", None))
        return Case(function, {name: value}, check=numbers, spoil=0)

    return make


def numbers(result: Any) -> str:
    values = result if isinstance(result, tuple) else (result,)
    return "" if all(isinstance(x, float | int) and math.isfinite(x) for x in values) else f"gave {result!r}"


TARGETS: dict[str, Callable[[Draw], Case]] = {f"functional: {name}": routing(case) for name, case in CASES.items()} | {
    "functional: discriminative_update": update,
    "functional: squash": elementwise(F.squash),
    "functional: length": elementwise(F.length),
    "functional: margin_loss": loss(F.margin_loss),
    "functional: spread_loss": loss(F.spread_loss, margin=(0.2, 0.9)),
    "functional: cross_entropy_loss": loss(F.cross_entropy_loss, label_smoothing=(0.0, 0.1)),
    "functional: binary_cross_entropy_loss": loss(F.binary_cross_entropy_loss),
    "functional: reconstruction_loss": pictures,
    "functional: inverse_temperature": schedule(F.inverse_temperature, "iterations"),
    "functional: spread_margin": schedule(F.spread_margin, "progress"),
    "functional: spread_margin_by_step": schedule(F.spread_margin_by_step, "step"),
}
