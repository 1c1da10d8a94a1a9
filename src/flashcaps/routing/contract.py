"""What every routing algorithm shares: its result, its contract, the axes.

Axes: B batch, I lower capsules (children), J upper capsules (parents), D pose (a P x P matrix pose is
flattened row by row). In a convolutional layer B runs over images and places, I over types x k x k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .checks import check_iterations


class Step(NamedTuple):
    """One routing iteration, kept when `record=True`."""

    coupling: Tensor  # (B, I, J)
    pose: Tensor  # (B, J, D)


class Routed(NamedTuple):
    """Upper capsules after routing."""

    pose: Tensor  # (B, J, D)
    activation: Tensor | None = None  # (B, J)
    coupling: Tensor | None = None  # (B, I, J)
    variance: Tensor | None = None  # (B, J, D), fp32 or better
    history: tuple[Step, ...] | None = None


class Sizes(NamedTuple):
    """What an algorithm may size its learned tensors by. `children` is None when a layer takes any number;
    `parents` is 1 when it makes any number, which then share everything."""

    children: int | None
    parents: int
    dim: int


Tensors = dict[str, Tensor]  # an algorithm's learned tensors by name
Function = Callable[..., Routed]  # an algorithm on votes: explicit, or a fused twin


class Learned(NamedTuple):
    """A tensor an algorithm needs from its layer: shape, start, and how the layer keeps it."""

    shape: tuple[int, ...]
    start: float = 0.0
    per_child: bool = False  # the first axis runs over children: repeated where a transform is shared
    state: bool = False  # a buffer the algorithm updates itself, not a parameter of the optimiser
    random: bool = False  # start from N(0, 1) instead of a constant
    parents: int | None = None  # the axis of parents: shared along it by a layer that makes any number


@dataclass(frozen=True)
class Routing:
    """An algorithm inside a layer: its options, the learned tensors it asks for, how it is called.

    `input_activation` and `output_activation` say what the activation of a child and of a parent mean: "probability",
    "score" (a logit), "length" (already part of the pose) or None.
    """

    iterations: int = 3

    def __post_init__(self) -> None:
        check_iterations(self.iterations)

    @property
    def input_activation(self) -> str | None:
        return None

    @property
    def output_activation(self) -> str | None:
        return None

    @property
    def function(self) -> Function:
        """The algorithm on explicit votes. A fused twin of the same signature replaces it on other backends."""
        raise TypeError(f"{type(self).__name__} declares no function")

    @property
    def over(self) -> str:
        """What a convolutional layer's softmax runs over: parent "types" at each place, or "positions" too."""
        return "types"

    @property
    def vote_bias(self) -> bool:
        """Whether votes have a learned bias unless told."""
        return False

    @property
    def stepwise(self) -> bool:
        """Whether `run` can go on from a given pose of the parents, one step at a time."""
        return False

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        return {}

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        """Initial values of the transforms, weight (J, d, G, h): a vote is as large as its pose."""
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def run(
        self, function: Function, votes: Any, activation: Tensor | None, learned: Tensors, **common: Any
    ) -> Routed:
        """Call `function` (this algorithm's, or its fused twin) with these options and learned tensors."""
        return function(votes, iterations=self.iterations, **learned, **common)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """fp64 if anything is, else fp32: half precision overflows in sums over children and in variances."""
    return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32
