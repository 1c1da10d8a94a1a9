"""Layers, stacks, heads and backbones: built with any numbers, then given any tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flashcaps
from flashcaps import ROUTING, CapsuleStack, ConvCapsules, Decoder, DenseCapsules, PrimaryCapsules, Routed
from flashcaps.nn.backbones import Conv, output_shape

from ..layer_cases import OPTIONS, takes_any_number
from .draw import Draw
from .judge import Case, real

CALL = ("u", "activation", "features")  # what a layer is called with; the rest builds it


def built_and_called(kind: type[nn.Module], training: bool, seed: int) -> Callable[..., Any]:
    """One function of everything a layer takes. The training loop has its own guard against NaN, evaluation has not."""

    def run(**arguments: Any) -> Any:
        torch.manual_seed(seed)
        layer = kind(**{k: v for k, v in arguments.items() if k not in CALL}).train(training)
        return layer(**{k: v for k, v in arguments.items() if k in CALL})

    return run


def numbers_for(draw: Draw, training: bool) -> str | None:
    return draw.pick(("normal", "large", "zero", "one", "tiny", "mixed")) if training else draw.pick((None, "normal"))


def finish(draw: Draw, kind: type[nn.Module], arguments: dict[str, Any], training: bool) -> Case:
    """A case that builds and calls a layer; capsules sometimes have activations."""
    u = arguments.get("u")
    if u is not None and draw.chance(0.4):
        arguments["activation"] = draw.tensor(u.shape[:-1], u.dtype, "normal").sigmoid()
    function = built_and_called(kind, training, draw.random.getrandbits(30))
    names = ("in_types", "kernel", "image", "votes", "weight", "channel")
    return Case(function, arguments, names=names, gradient=training)


def dense(routing: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        training = draw.chance(0.5)
        i, j, d, h = draw.size(6), draw.size(5), draw.size(4), draw.size(4)
        options: dict[str, Any] = dict(draw.pick(OPTIONS[routing]))
        backend = draw.pick(("auto", "auto", "matrix", "reference"))
        sizes: dict[str, Any] = {"routing": routing, "in_capsules": i, "in_dim": d, "out_capsules": j, "out_dim": h}
        if takes_any_number(routing) and draw.chance(0.2):
            sizes["in_capsules"] = None
        if draw.chance(0.2):
            sizes |= {"in_dim": (2, d), "out_dim": (2, h)}
            d *= 2
        u = draw.tensor((draw.size(4), i, d), kind=numbers_for(draw, training))
        return finish(draw, DenseCapsules, sizes | options | {"backend": backend, "u": u}, training)

    return make


def conv(routing: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        training = draw.chance(0.5)
        t, d, kernel = draw.size(3), draw.size(3), draw.pick((1, 2, 3))
        arguments: dict[str, Any] = {
            "routing": routing, "in_types": t, "in_dim": d, "out_types": draw.size(3), "out_dim": draw.size(3),
            "kernel": kernel, "stride": draw.pick((1, 2)), "padding": draw.pick((0, 0, 1)),
            "over": draw.pick(("types", "positions")), "backend": draw.pick(("auto", "reference")),
        }  # fmt: skip
        arguments |= draw.pick(OPTIONS[routing])
        u = draw.tensor((draw.size(3), t, draw.size(5), draw.size(5), d), kind=numbers_for(draw, training))
        return finish(draw, ConvCapsules, arguments | {"u": u}, training)

    return make


def primary(draw: Draw) -> Case:
    training = draw.chance(0.5)
    channels, kernel = draw.size(3), draw.pick((1, 2, 3))
    arguments: dict[str, Any] = {
        "in_channels": channels, "types": draw.size(3), "dim": draw.size(4), "kernel": kernel,
        "stride": draw.pick((1, 2)), "padding": draw.pick((0, 1)), "form": draw.pick(("squash", "sigmoid", "norm")),
        "batch_norm": draw.chance(0.3),
        "features": draw.tensor((draw.size(4), channels, draw.size(6), draw.size(6)), draw.pick((torch.float32, None)),
                                numbers_for(draw, training)),
    }  # fmt: skip
    return finish(draw, PrimaryCapsules, arguments, training)


def stack(draw: Draw) -> Case:
    """Two layers of any algorithms, one above the other."""
    names = (draw.pick(sorted(ROUTING)), draw.pick(sorted(ROUTING)))
    concurrent = all(ROUTING[name].stepwise for name in names) and draw.chance(0.7)
    i, d, training = draw.random.randint(1, 5), draw.random.randint(1, 4), draw.chance(0.5)
    kind = numbers_for(draw, training)
    arguments: dict[str, Any] = {
        "u": draw.tensor((draw.size(3), i, d), torch.float32, kind),
        "iterations": draw.pick((None, 1, 3)),
        "concurrent": concurrent or draw.chance(0.1),
    }
    seed = draw.random.getrandbits(30)

    def run(u: Any, iterations: Any, concurrent: Any) -> Routed:
        torch.manual_seed(seed)
        first = DenseCapsules(names[0], in_capsules=i, in_dim=d, out_capsules=3, out_dim=4)
        second = DenseCapsules(names[1], in_capsules=3, in_dim=4, out_capsules=2, out_dim=4)
        return CapsuleStack([first, second], iterations, concurrent).train(training)(u)

    return Case(run, arguments, gradient=training)


def head(draw: Draw) -> Case:
    b, j, d = draw.size(4), draw.size(5), draw.size(4)
    arguments: dict[str, Any] = {"pose": draw.tensor((b, j, d)), "chosen": draw.labels(b, j)}
    if draw.chance(0.5):
        arguments["activation"] = draw.tensor((b, j), kind="normal")
    which = draw.pick(("lengths", "activations", "linear", "decoder"))

    def run(pose: Any, chosen: Any, activation: Any = None) -> Tensor:
        torch.manual_seed(0)
        routed, dtype = Routed(pose, activation), pose.dtype if real(pose) else None
        if which == "decoder":
            return Decoder(j, d, (1, 3, 3), hidden=(4,)).to(dtype)(routed, chosen)
        heads = {"lengths": flashcaps.Lengths, "activations": flashcaps.Activations}
        layer = heads[which]() if which in heads else flashcaps.SharedLinear(d).to(dtype)
        return layer.eval()(routed)

    return Case(run, arguments, names=("routed", "capsules", "dim"), gradient=draw.chance(0.5))


def ascent(draw: Draw) -> Case:
    """A training step of a discriminative layer."""
    b, i, j = draw.size(4), draw.size(4), draw.size(4)
    arguments = {"u": draw.tensor((b, i, 3), torch.float32, numbers_for(draw, True)), "labels": draw.labels(b, j)}

    def run(u: Any, labels: Any) -> Tensor:
        torch.manual_seed(0)
        layer = DenseCapsules("discriminative", in_capsules=i, in_dim=3, out_capsules=j, out_dim=2)
        layer(u)
        flashcaps.ascend_coefficients(layer, labels)
        return layer.coefficients

    return Case(run, arguments, names=("in_capsules", "out_capsules"))


def backbone(draw: Draw) -> Case:
    arguments: dict[str, Any] = {
        "channels": draw.size(4), "kernel": draw.pick((1, 3, 5)), "stride": draw.pick((1, 2)),
        "padding": draw.pick((0, 1)), "activation": draw.pick(("relu", "swish", "none", "rellu")),
        "norm": draw.pick((None, "before", "middle")), "pool": draw.pick((None, "max", "global")),
        "image": (draw.size(3), draw.size(8), draw.size(8)),
    }  # fmt: skip

    def run(image: Any, **options: Any) -> tuple[int, ...]:
        return output_shape(Conv(**options).build(image[0] if isinstance(image, tuple) and image else 1), image)

    return Case(run, arguments, names=("in_channels", "backbone"))


TARGETS: dict[str, Callable[[Draw], Case]] = {
    "PrimaryCapsules": primary,
    "CapsuleStack": stack,
    "heads": head,
    "ascend_coefficients": ascent,
    "backbones": backbone,
}
TARGETS |= {f"DenseCapsules: {name}": dense(name) for name in ROUTING}
TARGETS |= {f"ConvCapsules: {name}": conv(name) for name in ROUTING}
