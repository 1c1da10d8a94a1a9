"""What all routing algorithms share: the axes, the result, and the contract with layers.

Axes: B batch, I lower capsules (children), J upper capsules (parents), D pose (a P x P matrix pose is
flattened row by row). In a convolutional layer B runs over images and places, I over types x k x k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from .checks import check_iterations


class Step(NamedTuple):
    """One routing iteration, kept when `record=True`."""

    coupling: Tensor  # (B, I, J)
    pose: Tensor  # (B, J, D)
    activation: Tensor | None = None  # (B, J), where the algorithm has one beside the pose


class Routed(NamedTuple):
    """Upper capsules after routing, as every layer returns and takes them."""

    pose: Tensor  # (B, J, D)
    activation: Tensor | None = None  # (B, J)
    coupling: Tensor | None = None  # (B, I, J)
    variance: Tensor | None = None  # (B, J, D), fp32 or better
    history: tuple[Step, ...] | None = None
    kind: str | None = None  # what a layer's activation is: "length", "probability" or "score"


class Sizes(NamedTuple):
    """Sizes of a layer, for the shapes of learned tensors. `children` is None where a layer takes any number of them;
    `parents` is 1 where it makes any number, which then share all tensors."""

    children: int | None
    parents: int
    dim: int


Tensors = dict[str, Tensor]  # an algorithm's learned tensors by name
Function = Callable[..., Routed]  # an algorithm on votes: explicit, or a fused twin


class Learned(NamedTuple):
    """A tensor an algorithm needs from its layer: shape, initial value, and how the layer keeps it."""

    shape: tuple[int, ...]
    start: float = 0.0
    per_child: bool = False  # the first axis runs over children; it is repeated where they share a transform
    state: bool = False  # a buffer the algorithm updates itself, not a parameter of the optimiser
    random: bool = False  # start from N(0, 1) instead of a constant
    parents: int | None = None  # the axis of parents, along which a layer that makes any number shares it


class Memory(Protocol):
    """What a layer keeps of its last forward pass, for a training step of the algorithm's own."""

    votes: Any  # `kernels.votes.Votes`, or None

    def keep(self, learned: Tensors, weight: Tensor, hidden: bool) -> Tensors:
        """The tensors to route with. hidden: the objective belongs to a layer above."""
        ...


@dataclass(frozen=True)
class Routing:
    """An algorithm inside a layer: its options, its declarations, the learned tensors it needs, and how it is called.

    The class attributes are declarations: layers, models, figures and the command line know nothing else of an
    algorithm. `input_activation` and `output_activation` say what the activation of a child and of a parent means:
    "probability", "score" (a logit), "length" (already part of the pose) or None.
    """

    title: ClassVar[str] = ""  # in words; where it is empty, the name in `ROUTING`
    function: ClassVar[Function]  # the algorithm on explicit votes: staticmethod(my_routing)
    input_activation: ClassVar[str | None] = None
    output_activation: ClassVar[str | None] = None
    loss: ClassVar[str] = "cross_entropy"  # what its class scores are trained with: "margin", "spread" or this
    over: ClassVar[str] = "types"  # a convolutional softmax runs over parent "types" at each place, or "positions" too
    vote_bias: ClassVar[bool] = False  # whether votes have a learned bias by default
    stepwise: ClassVar[bool] = False  # whether `run` can continue from a pose of the parents, one step at a time

    iterations: int = 3

    def __post_init__(self) -> None:
        check_iterations(self.iterations)

    @property
    def explicit(self) -> bool:
        """Whether these options need all votes at once, which fused twins never store."""
        return False

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        return {}

    def output_norm(self, sizes: Sizes) -> nn.Module | None:
        """A module for the parents' activations (N, J) after routing, N over examples and places, or None."""
        return None

    def memory(self) -> Memory | None:
        """What a layer keeps for the algorithm's own training step; None where the algorithm has none."""
        return None

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        """Initial values of the transforms, weight (J, d, G, h): a vote is as large as its pose."""
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def run(self, function: Function, votes: Any, activation: Tensor | None, learned: Tensors, **common: Any) -> Routed:
        """Call `function` (this algorithm's, or its fused twin) with these options and learned tensors."""
        return function(votes, iterations=self.iterations, **learned, **common)
