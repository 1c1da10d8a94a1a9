"""What dense and convolutional capsule layers share: transforms, learned tensors, the choice of backend."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import MATRIX, TRITON
from ..kernels.dispatch import pick_form
from ..routing import ROUTING, Routed, Routing, Sizes, Step
from ..routing.checks import (
    check_choice,
    check_floating,
    check_overflow,
    check_shape,
    check_sizes,
    is_transformed,
    nearest,
)
from ..routing.contract import compute_dtype
from ..routing.math import Softmax, no_autocast, over_parents
from ..routing.votes import Votes, Windows, add_bias, add_coordinates, group

BACKENDS = ("auto", "reference", "matrix", "triton")

Dim = int | tuple[int, int]


class Seen:
    """What a discriminative layer saw in this training step: its votes, and the coefficients its graph holds.

    It belongs to a graph, so a copy of the layer starts without it.
    """

    def __init__(self) -> None:
        self.votes: Votes | None = None
        self.coefficients: Tensor | None = None
        self.version: int | None = None  # of the weights, to notice when they have moved on

    def __deepcopy__(self, memo: dict[int, Any]) -> Seen:
        return Seen()

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        return Seen, ()


class FiniteModule(nn.Module):
    """A module that refuses NaN and Inf in the weights it loads, its parts' included."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key, x in state_dict.items():
            if key.startswith(prefix) and x.is_floating_point() and not torch.isfinite(x).all():
                raise ValueError(f"{key}: expected finite weights, got {int((~torch.isfinite(x)).sum())} NaN or Inf")
        super()._load_from_state_dict(state_dict, prefix, *args)


class CapsuleLayer(FiniteModule):
    """What dense and convolutional layers share: transforms, learned tensors, backend."""

    weight: nn.Parameter  # (J, d, G, h)
    coefficients: Tensor  # discriminative: (children, parents)

    def __init__(
        self,
        routing: str,
        groups: int | None,
        in_dim: Dim,
        parents: int | None,
        out_dim: Dim,
        pose: str = "vector",
        vote_bias: bool | None = None,
        backend: str = "auto",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_choice("routing", routing, ROUTING)
        check_choice("pose", pose, ("vector", "matrix"))
        check_choice("backend", backend, BACKENDS)
        self.name = routing
        self.routing = make_routing(routing, options or {})
        self.rows, d = pose_shape("in_dim", in_dim, pose)
        rows, h = pose_shape("out_dim", out_dim, pose)
        if rows != self.rows:
            raise ValueError(f"out_dim: expected {self.rows} rows like in_dim's pose, got {rows} ({out_dim})")
        self.groups, self.parents = groups, parents
        self.in_dim, self.out_dim = rows * d, rows * h
        self.backend = choose_backend(routing, backend)

        g, j = groups or 1, parents or 1
        sizes = Sizes(groups, j, self.out_dim)
        self.weight = nn.Parameter(torch.empty(j, d, g, h))
        with torch.no_grad():
            self.routing.init_weights(self.weight, sizes)
        biased = self.routing.vote_bias if vote_bias is None else vote_bias
        self.bias = nn.Parameter(torch.zeros(j, rows, g, h)) if biased else None
        self.learned = nn.ParameterDict()
        self._specs = self.routing.learned(sizes)
        for name, spec in self._specs.items():
            value = torch.randn(spec.shape) if spec.random else torch.full(spec.shape, spec.start)
            if spec.state:
                self.register_buffer(name, value)
            else:
                self.learned[name] = nn.Parameter(value)
        self.seen = Seen()
        self.hidden = False  # discriminative: a layer above has the objective; a stack says so

    def _form(self, votes: Votes | Windows, softmax: Softmax) -> tuple[str, Callable[..., Routed]]:
        """The backend that takes these votes, and its function. torch.func's transforms know plain operators alone."""
        name = self.backend
        if name == "auto":
            name = "reference" if is_transformed() else pick_form(self.name, votes, softmax)
        return name, self.routing.function if name == "reference" else MATRIX[self.name]

    def _tensors(self, votes: Votes | Windows) -> dict[str, Tensor]:
        """The algorithm's learned tensors; what children or parents share is repeated."""
        repeats, parents, dtype = votes.repeats, votes.weight.shape[0], votes.weight.dtype
        tensors = {}
        for name, spec in self._specs.items():
            x = getattr(self, name) if spec.state else self.learned[name]
            if name == "coefficients" and self._takes_notes:
                x = x.clone()  # the graph keeps this one, so the state may change at any time
                self.seen.coefficients = x.requires_grad_() if self.hidden else x
            x = x.to(dtype)
            if self.parents is None and spec.parents is not None:
                x = x.expand(*(parents if k == spec.parents % x.ndim else -1 for k in range(x.ndim)))
            tensors[name] = x.repeat_interleave(repeats, 0) if spec.per_child and repeats > 1 else x
        return tensors

    @property
    def _takes_notes(self) -> bool:
        """Whether this forward pass is one that the coefficients' own step may follow."""
        return self.training and torch.is_grad_enabled() and not is_transformed()

    def _source(self, u: Tensor, yx: Tensor | None) -> Votes | Windows:
        """What routing gets of u; a convolutional layer may have left patches in their image."""
        return self._votes(u, yx)

    def _votes(self, u: Tensor, yx: Tensor | None) -> Votes:
        dtype = compute_dtype(u, self.weight)
        weight = self.weight.to(dtype)
        if self.parents is None:  # as many parents as children, one transform for all
            weight = weight.expand(u.shape[1], *weight.shape[1:])
        votes = Votes(group(u.to(dtype), self.groups or 1, self.rows), weight)
        if self.bias is not None and not self._bias_apart:
            votes = add_bias(votes, self._vote_bias(votes))
        return votes if yx is None else add_coordinates(votes, yx)

    @property
    def _bias_apart(self) -> bool:
        """Whether kernels add the bias themselves: heinsen's, which others see as more columns of poses."""
        return self.bias is not None and self.name == "heinsen"

    def _vote_bias(self, votes: Votes) -> Tensor:
        assert self.bias is not None
        return self.bias.to(votes.u.dtype).expand(votes.weight.shape[0], *self.bias.shape[1:])

    def _route(
        self,
        u: Tensor,
        activation: Tensor | None,
        *,
        softmax: Softmax = over_parents,
        yx: Tensor | None = None,
        coupling: bool = False,
        record: bool = False,
        step: bool = False,
        pose: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Routed:
        """Poses (B, I, D), activations (B, I) -> Routed in dtype (None: u's). Under autocast, too, routing is fp32."""
        with no_autocast(u.device):
            votes: Any = self._source(u, yx)
            activation = self._gate(votes, activation)
            if activation is not None and self.routing.input_activation is None:
                votes, activation = Votes(votes.u * activation.view(*votes.u.shape[:3], 1, 1), votes.weight), None
            learned = self._tensors(votes)
            routing, (form, function) = self.routing, self._form(votes, softmax)
            common: dict[str, Any] = {"softmax": softmax, "record": record}
            if self._bias_apart and form == "triton":
                common["vote_bias"] = self._vote_bias(votes)
            elif self._bias_apart:
                votes = add_bias(votes, self._vote_bias(votes))
            if step:
                routing, common["pose"] = dataclasses.replace(routing, iterations=1), pose
            if form == "reference":
                routed = routing.run(function, votes.explicit(), activation, learned, **common)
            else:
                if form == "triton":
                    common["triton"] = True
                routed = routing.run(function, votes, activation, learned, coupling=coupling, **common)
            if "coefficients" in learned and self._takes_notes:
                self.seen.votes = votes
                self.seen.version = None if torch.compiler.is_compiling() else self.weight._version
            if not self.training:  # training has a guard of its own, which can step back
                given = {"u": u, "weight": self.weight} | {f"learned {name}": x for name, x in learned.items()}
                check_overflow((routed.pose, routed.activation, routed.variance), False, **given)
            return cast(routed, dtype or u.dtype, coupling)

    def _gate(self, votes: Votes | Windows, activation: Tensor | None) -> Tensor | None:
        like = votes.weight
        if activation is not None:
            return activation.to(like.dtype)
        absent = {"probability": 1.0, "score": math.inf}.get(self.routing.input_activation or "")
        shape = votes.image.shape[:4] if isinstance(votes, Windows) else votes.shape[:2]
        return None if absent is None else torch.full(shape, absent, dtype=like.dtype, device=like.device)

    def _check(self, u: Tensor, activation: Tensor | None, shape: str, ndim: int) -> None:
        check_floating("u", u)
        if u.ndim != ndim or u.shape[-1] != self.in_dim:
            raise ValueError(f"u: expected {shape} with D = {self.in_dim}, got {tuple(u.shape)}")
        if u.device != self.weight.device:
            raise ValueError(f"u: on {u.device}, but the layer is on {self.weight.device}; move one with .to()")
        if activation is not None:
            check_floating("activation", activation)
            if activation.device != u.device:
                raise ValueError(f"activation: on {activation.device}, but u is on {u.device}; move one with .to()")
            if activation.shape != u.shape[:-1]:
                raise ValueError(
                    f"activation: expected {tuple(u.shape[:-1])}, one per capsule, got {tuple(activation.shape)}"
                )

    def step(
        self, u: Tensor, pose: Tensor | None = None, activation: Tensor | None = None, *, coupling: bool = False
    ) -> Routed:
        raise TypeError(f"{type(self).__name__} has no routing step")

    def set_iterations(self, iterations: int) -> None:
        self.routing = dataclasses.replace(self.routing, iterations=iterations)

    def _check_step(self, pose: Tensor | None, shape: tuple[int, ...]) -> None:
        if not self.routing.stepwise:
            raise TypeError(f"step: {self.name} routing has no single step; only attention's goes on from a given pose")
        check_shape("pose", pose, shape, "the parents' pose so far")



def cast(routed: Routed, dtype: torch.dtype, coupling: bool) -> Routed:
    """Poses and activations in the caller's dtype, variances in fp32, the coupling only if asked for."""
    pose, a, c, variance, history = routed
    if history is not None:
        history = tuple(Step(x.coupling, x.pose.to(dtype)) for x in history)
    return Routed(pose.to(dtype), None if a is None else a.to(dtype), c if coupling else None, variance, history)


def make_routing(name: str, options: dict[str, Any]) -> Routing:
    """The algorithm with its options; a wrong option is answered with the nearest right one."""
    known = [f.name for f in dataclasses.fields(ROUTING[name])]
    for key in options:
        if key not in known:
            raise TypeError(f"{key}: no option of {name} routing, which has {', '.join(known)}{nearest(key, known)}")
    return ROUTING[name](**options)


def pose_shape(name: str, dim: Dim, pose: str) -> tuple[int, int]:
    """(rows, columns) of a pose: a vector is one row, a matrix is square unless both are given."""
    if isinstance(dim, tuple):
        if len(dim) != 2:
            raise ValueError(f"{name}: expected a number or (rows, columns), got {dim}")
        for size in dim:
            check_sizes(**{name: size})
        return dim
    check_sizes(**{name: dim})
    if pose == "vector":
        return 1, dim
    side = math.isqrt(dim)
    if side * side != dim:
        raise ValueError(f"{name}: expected a square for pose='matrix', got {dim}; give (rows, columns) instead")
    return side, side


def choose_backend(routing: str, backend: str) -> str:
    """What a layer is built with. "auto" stays, to be answered when votes come (`pick_form`): `triton` on CUDA devices
    where it can, else `matrix`; an algorithm without such forms gets `reference`.

    A backend asked for by name is kept to; votes it cannot take are an error when they come.
    """
    if backend == "auto":
        return "auto" if routing in MATRIX else "reference"
    if backend == "triton" and routing not in TRITON:
        raise ValueError(f"backend: {routing!r} has no 'triton' kernel; use 'auto', 'matrix' or 'reference'")
    if backend == "triton" and importlib.util.find_spec("triton") is None:
        raise ValueError("backend: 'triton' is not installed; pip install flashcaps[triton], or use 'auto'")
    if backend == "triton" and not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        raise ValueError("backend: 'triton' needs a CUDA device, and there is none; use 'auto'")
    if backend == "matrix" and routing not in MATRIX:
        raise ValueError(f"backend: {routing!r} has no 'matrix' form; use 'auto' or 'reference'")
    return backend
