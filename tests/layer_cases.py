"""Every capsule layer in every form it takes, as data: tests run over `cases()` instead of naming algorithms."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashcaps import ROUTING, ConvCapsules, DenseCapsules, Routed, Sizes
from flashcaps.kernels.votes import Votes
from flashcaps.nn.capsules import CapsuleLayer

from .conftest import TOLERANCE, assert_near


class Form(NamedTuple):
    """A layer class, its sizes, and the axes of its children: (I,) or (types, H, W)."""

    kind: type[CapsuleLayer]
    children: tuple[int, ...]
    sizes: dict[str, Any]


def _dense(
    children: tuple[int, ...], in_capsules: int | None, in_dim: Any, out_capsules: int | None, out_dim: Any, **more: Any
) -> Form:
    return Form(
        DenseCapsules,
        children,
        dict(in_capsules=in_capsules, in_dim=in_dim, out_capsules=out_capsules, out_dim=out_dim, **more),
    )


def _conv(children: tuple[int, ...], in_dim: Any, out_types: int, out_dim: Any, **more: Any) -> Form:
    return Form(
        ConvCapsules, children, dict(in_types=children[0], in_dim=in_dim, out_types=out_types, out_dim=out_dim, **more)
    )


FORMS = {
    "dense": _dense((7,), 7, 3, 5, 4),
    "dense, matrix": _dense((5,), 5, 4, 3, 4, pose="matrix"),
    "dense, rectangular": _dense((3,), 3, (2, 3), 2, (2, 5)),
    "dense, ones": _dense((1,), 1, 1, 1, 1),
    "dense, places": _dense((3, 2, 1), 6, 2, 3, 3),
    "shared": _dense((2, 3, 2), 2, 3, 3, 4, shared=True, coordinates=True),
    "shared, matrix": _dense((3, 1, 2), 3, 4, 2, 4, pose="matrix", shared=True, coordinates=True),
    "shared, no place": _dense((2, 2, 2), 2, (2, 3), 2, (2, 5), shared=True),
    "any": _dense((5,), None, 3, 4, 5),
    "any, rectangular": _dense((4,), None, (2, 3), 3, (2, 5)),
    "any, as many": _dense((3,), None, 3, None, 5),
    "conv": _conv((2, 5, 4), 3, 2, 5, kernel=3, stride=2, padding=1, over="types"),
    "conv, positions": _conv((2, 5, 4), 3, 3, 4, kernel=3, stride=1, over="positions"),
    "conv, matrix": _conv((3, 3, 3), 4, 2, 4, kernel=2, pose="matrix", over="types"),
    "conv, matrix, positions": _conv((1, 4, 5), (2, 3), 2, (2, 5), kernel=3, stride=2, padding=1, over="positions"),
    "conv, point": _conv((2, 1, 3), 2, 3, 3, kernel=1, over="positions"),
}

# The first of each is the plain algorithm. Large eps and temperatures keep every number well away from a limit.
OPTIONS: dict[str, list[dict[str, Any]]] = {name: [{}] for name in ROUTING} | {
    "dynamic": [
        {"iterations": 3},
        {"iterations": 1},
        {"iterations": 2, "leaky": True, "vote_bias": True},
        {"iterations": 3, "prior": True, "bias": True},
        {"iterations": 3, "detach": True, "prior": True, "bias": True},
        {"iterations": 2, "leaky": True, "prior": True},
    ],
    "em": [
        {"iterations": 3, "inverse_temperature": (0.3, 0.6, 1.0), "eps": 0.05},
        {"iterations": 2, "inverse_temperature": 0.5, "eps": 0.02, "vote_bias": True},
        {"iterations": 1},
        {"iterations": 3, "relative": True, "eps": 0.05, "beta_u": -1.0},
        {"iterations": 4, "sharpness": (0.1, 0.3, 0.5, 1.0), "inverse_temperature": 0.5, "eps": 0.05},
    ],
    "attention": [
        {"iterations": 3},
        {"iterations": 1, "vote_bias": True},
        {"iterations": 2, "norm": False, "scale": 1.0},
        {"iterations": 2, "activation": True, "initial": "learned"},
        {"iterations": 2, "initial": "random"},
    ],
    "heinsen": [
        {"iterations": 3, "eps": 0.05},
        {"iterations": 2, "eps": 0.05, "tied": True, "vote_bias": False},
        {"iterations": 1},
    ],
    "discriminative": [{}, {"vote_bias": True}],
}


def takes_any_number(routing: str) -> bool:
    """Whether the algorithm keeps no number per child."""
    try:
        ROUTING[routing]().learned(Sizes(None, 2, 2))
    except ValueError:
        return False
    return True


def transforms(weight: Tensor) -> Tensor:
    """A layer's weight or vote bias, (J, d, G, h), as (J, G, d, h): entry [j, g] is W_ij."""
    return weight.transpose(1, 2)


def make_votes(u: Tensor, w: Tensor) -> Votes:
    """Poses (B, G, R, C, d) and transforms (J, G, d, h)."""
    return Votes(u, w.transpose(1, 2).contiguous())


class LayerCase(NamedTuple):
    routing: str
    form: str
    option: int = 0

    @property
    def id(self) -> str:
        return f"{self.routing}{self.option or ''}-{self.form}".replace(", ", "_").replace(" ", "_")

    @property
    def children(self) -> tuple[int, ...]:
        return FORMS[self.form].children

    def build(self, backend: str = "reference", dtype: torch.dtype = torch.float64, seed: int = 0) -> CapsuleLayer:
        """The layer, every learned tensor and state random; the same numbers whatever the backend."""
        kind, _, sizes = FORMS[self.form]
        layer = kind(self.routing, backend=backend, **sizes, **OPTIONS[self.routing][self.option])
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _, x in sorted(layer.state_dict(keep_vars=True).items()):
                x.copy_(0.7 * torch.randn(x.shape, generator=generator, dtype=torch.float64))
        layer.hidden = True  # so that discriminative's coefficients, too, have a gradient to compare
        return layer.to(dtype)

    def draw(self, batch: int = 2, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor | None]:
        """Poses and activations of the children; an algorithm that takes no activation gets one at odd seeds only."""
        generator = torch.Generator().manual_seed(seed)
        dim = FORMS[self.form].sizes["in_dim"]
        dim = dim if isinstance(dim, int) else dim[0] * dim[1]
        u = torch.randn(batch, *self.children, dim, generator=generator, dtype=torch.float64)
        a = torch.randn(batch, *self.children, generator=generator, dtype=torch.float64)
        takes = ROUTING[self.routing](
            **{k: v for k, v in OPTIONS[self.routing][self.option].items() if k != "vote_bias"}
        ).input_activation
        if takes is None and seed % 2 == 0:
            return u.to(dtype), None
        return u.to(dtype), (a if takes == "score" else a.sigmoid()).to(dtype)


def cases(*routings: str, forms: tuple[str, ...] = tuple(FORMS), options: bool = True) -> list[LayerCase]:
    """Every form with every option, where the algorithm takes the form."""
    return [
        LayerCase(routing, form, k)
        for routing in routings or tuple(ROUTING)
        for form in forms
        for k in range(len(OPTIONS[routing]) if options else 1)
        if takes_any_number(routing) or not form.startswith("any")
    ]


def quick(routing: str, form: str) -> LayerCase:
    """The case with the number of iterations nearest to two: enough for an update, and quick to trace."""
    iterations = [options.get("iterations", ROUTING[routing].iterations) for options in OPTIONS[routing]]
    return LayerCase(routing, form, min(range(len(iterations)), key=lambda k: abs(iterations[k] - 2)))


def ids(case: Any) -> str | None:
    return case.id if isinstance(case, LayerCase) else None


def outputs(routed: Routed) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a result, named."""
    for name in ("pose", "activation", "coupling", "variance"):
        x = getattr(routed, name)
        if x is not None:
            yield name, x
    for t, step in enumerate(routed.history or ()):
        yield f"coupling at {t}", step.coupling
        yield f"pose at {t}", step.pose
        if step.activation is not None:
            yield f"activation at {t}", step.activation


def combination(routed: Routed) -> Tensor:
    """A fixed random combination of every tensor of a result, in float64."""
    generator = torch.Generator().manual_seed(2)
    total = torch.zeros((), dtype=torch.float64)
    for _, x in outputs(routed):
        weight = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
        total = total + (x.double() * weight).sum()
    return total


def run_layer(
    layer: CapsuleLayer, u: Tensor, activation: Tensor | None, context: Any = None, **asked: bool
) -> tuple[Routed, dict[str, Tensor]]:
    """The result, and the gradient of `combination` by poses, activations and everything the layer holds.

    context: what the forward pass runs in; the backward pass runs outside.
    """
    inputs = {"u": u.detach().clone(memory_format=torch.preserve_format).requires_grad_()}
    if activation is not None:
        inputs["activation"] = activation.detach().clone().requires_grad_()
    with context or nullcontext():
        routed = layer(inputs["u"], inputs.get("activation"), **asked)
    named = inputs | dict(layer.named_parameters())
    kept = getattr(layer.memory, "coefficients", None)
    if kept is not None and kept.requires_grad:
        named["coefficients"] = kept
    gradients = torch.autograd.grad(combination(routed), list(named.values()), allow_unused=True)
    return routed, {
        k: torch.zeros_like(x) if g is None else g for (k, x), g in zip(named.items(), gradients, strict=True)
    }


def assert_same(
    actual: tuple[Routed, dict[str, Tensor]],
    expected: tuple[Routed, dict[str, Tensor]],
    dtype: torch.dtype = torch.float64,
) -> None:
    """Every output and every gradient, to the tolerance of `dtype`."""
    tolerance = TOLERANCE[dtype]
    values, wanted = dict(outputs(actual[0])), dict(outputs(expected[0]))
    assert values.keys() == wanted.keys()
    for name, x in values.items():
        assert_near(x, wanted[name].double(), tolerance.output, name)
    assert actual[1].keys() == expected[1].keys()
    for name, x in actual[1].items():
        assert_near(x, expected[1][name].double(), tolerance.gradient, f"gradient of {name}")
