"""The parts of a capsule network as numbers. Each spec builds its layer once it knows what lies below."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..nn.backbones import Image
from ..nn.capsules import CapsuleLayer, ConvCapsules, DenseCapsules, PrimaryCapsules, make_routing
from ..nn.heads import Activations, Lengths, SharedLinear
from ..nn.stack import CapsuleStack
from ..routing import Routed, Routing, Sizes
from ..routing.checks import check_iterations

LAYER_OPTIONS = ("vote_bias", "over", "scrambled")  # all but the first are a convolution's


class Grid(NamedTuple):
    """The capsules of one layer: `types` of them at every place; above a dense layer there is one place."""

    types: int
    height: int
    width: int
    dim: int

    @property
    def capsules(self) -> int:
        return self.types * self.height * self.width


@dataclass(frozen=True)
class Route:
    """How capsules are routed, from the first capsule layer to the last. None lets the algorithm choose.

    options: the algorithm's own, and those of its layers, `LAYER_OPTIONS`.
    """

    routing: str
    iterations: int | None = None
    pose: str | None = None
    concurrent: bool | None = None
    backend: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.iterations is not None:
            check_iterations(self.iterations)
        if "iterations" in self.options:  # which the route's own would override
            raise ValueError(f"options: expected no iterations among them, got {self.options['iterations']!r}; "
                             f"give iterations={self.options['iterations']!r} beside options")

    @property
    def settings(self) -> dict[str, Any]:
        """The options of its layers, with the number of iterations, which a list with an entry for each needs."""
        return dict(self.options) | ({} if self.iterations is None else {"iterations": self.iterations})

    @cached_property
    def algorithm(self) -> Routing:
        return make_routing(self.routing, {k: v for k, v in self.settings.items() if k not in LAYER_OPTIONS})

    @property
    def form(self) -> str:
        """The primary capsules' form: what the algorithm takes."""
        takes = self.algorithm.input_activation
        if takes is None:
            return "squash" if self.algorithm.output_activation == "length" else "norm"
        return "score" if takes == "score" else "sigmoid"

    def kind(self, dims: list[int]) -> str:
        """Vectors where a pose's length is its activation, else matrices, if all dimensions are the same square."""
        if self.pose is not None:
            return self.pose
        square = len(set(dims)) == 1 and math.isqrt(dims[0]) ** 2 == dims[0]
        return "matrix" if square and self.algorithm.output_activation != "length" else "vector"

    def head(self, dim: int) -> nn.Module:
        """From class capsules to scores: attention reads them from poses, every other algorithm has them."""
        if self.algorithm.stepwise:
            return SharedLinear(dim) if self.algorithm.output_activation is None else GatedLinear(dim)
        return Lengths() if self.algorithm.output_activation == "length" else Activations()

    def stack(self, layers: list[CapsuleLayer]) -> CapsuleStack:
        """Concurrent if the algorithm can be, and then with two iterations: one has uniform coefficients alone."""
        stepwise = self.algorithm.stepwise
        iterations = self.iterations or (2 if stepwise else None)
        return CapsuleStack(layers, iterations, stepwise if self.concurrent is None else self.concurrent)

    def counts_children(self, parents: int, dim: int) -> bool:
        """Whether the algorithm learns a number per child, so that the number of children is fixed."""
        try:
            self.algorithm.learned(Sizes(None, parents, dim))
        except ValueError:
            return True
        return False


class GatedLinear(SharedLinear):
    """SharedLinear on what a capsule with an activation hands on, its pose times its activation."""

    def forward(self, routed: Routed) -> Tensor:
        assert routed.activation is not None
        return super().forward(Routed(routed.pose * routed.activation[..., None]))


@dataclass(frozen=True)
class Primary:
    """The arguments of `PrimaryCapsules`. With shares None, a leaky route counts as one more type."""

    types: int
    dim: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True
    batch_norm: bool = False
    shares: int | None = None
    shift: float = 0.0
    grouping: str = "channels"

    def build(self, features: Image, route: Route) -> tuple[PrimaryCapsules, Grid]:
        channels, h, w = features
        shares = self.types + bool(route.options.get("leaky")) if self.shares is None else self.shares
        layer = PrimaryCapsules(channels, **vars(self) | {"shares": shares}, form=route.form)
        h, w = places("primary", h, w, self.kernel, self.stride, self.padding)
        return layer, Grid(self.types, h, w, self.dim)


@dataclass(frozen=True)
class ConvCaps:
    types: int
    dim: int
    kernel: int
    stride: int = 1
    padding: int = 0

    def build(self, below: Grid, route: Route, pose: str) -> tuple[CapsuleLayer, Grid]:
        layer = ConvCapsules(
            route.routing, in_types=below.types, in_dim=below.dim, out_types=self.types, out_dim=self.dim,
            kernel=self.kernel, stride=self.stride, padding=self.padding, pose=pose, backend=route.backend,
            **route.settings,
        )  # fmt: skip
        h, w = places("ConvCaps", below.height, below.width, self.kernel, self.stride, self.padding)
        return layer, Grid(self.types, h, w, self.dim)


@dataclass(frozen=True)
class Dense:
    """capsules: None means one per class. children: "each" child has its own transform; those of a "type" share one,
    and coordinates are added; "any" number of children share one."""

    capsules: int | None = None
    dim: int = 16
    children: str = "each"

    def build(self, below: Grid, route: Route, pose: str) -> tuple[CapsuleLayer, Grid]:
        assert self.capsules is not None
        children = self.children
        if children == "any" and route.counts_children(self.capsules, self.dim):
            children = "type"
        in_capsules = {"each": below.capsules, "type": below.types, "any": None}[children]
        layer = DenseCapsules(
            route.routing, in_capsules=in_capsules, in_dim=below.dim, out_capsules=self.capsules, out_dim=self.dim,
            pose=pose, shared=children == "type", coordinates=self.children == "type", backend=route.backend,
            **{k: v for k, v in route.settings.items() if k not in LAYER_OPTIONS[1:]},
        )  # fmt: skip
        return layer, Grid(self.capsules, 1, 1, self.dim)


def places(what: str, height: int, width: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """The grid a k x k window leaves."""
    if min(height, width) + 2 * padding < kernel:
        raise ValueError(f"image: too small: {height} x {width} places reach {what}, whose kernel is {kernel}; "
                         "give a larger image, or a smaller kernel or stride below")
    return (height + 2 * padding - kernel) // stride + 1, (width + 2 * padding - kernel) // stride + 1
