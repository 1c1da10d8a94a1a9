"""Capsule layers: primary, dense, convolutional. They hold parameters, check inputs and route them by one call."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn

from ..kernels.common.norm import layer_norm_poses, squash_poses
from ..kernels.common.patches import patches
from ..kernels.dispatch import BACKENDS, Transform, Window, choose_backend, make_votes, route
from ..routing import ROUTING, Routed, Routing, Sizes, Step
from ..routing.checks import (
    check_choice,
    check_dtype,
    check_floating,
    check_overflow,
    check_probability,
    check_shape,
    check_sizes,
    explained,
    is_transformed,
    nearest,
)
from ..routing.contract import Memory, Tensors
from ..routing.math import as_dtype, compute_dtype, length
from .backbones import ChannelsLast

PRIMARY_FORMS = ("squash", "sigmoid", "norm", "score")
GROUPINGS = ("channels", "places")

Dim = int | tuple[int, int]
# Poses and activations of children, how they vote, and (B, H', W') of a convolution's parents.
Children = tuple[Tensor, Tensor | None, Transform, tuple[int, int, int] | None]


class FiniteModule(nn.Module):
    """A module that refuses NaN and Inf in the weights it loads, its parts' included."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key, x in state_dict.items():
            if not key.startswith(prefix) or not isinstance(x, Tensor) or x.is_meta:  # extra state may be anything
                continue
            if x.is_floating_point() and not torch.isfinite(x).all():
                raise ValueError(f"{key}: expected finite weights, got {int((~torch.isfinite(x)).sum())} NaN or Inf")
        super()._load_from_state_dict(state_dict, prefix, *args)


def reset_parts(module: nn.Module) -> None:
    """Calls `reset_parameters` of every module inside, as PyTorch's own layers have it."""
    for part in module.modules():
        if part is not module and hasattr(part, "reset_parameters"):
            cast(Any, part).reset_parameters()


class PrimaryCapsules(FiniteModule, ChannelsLast):
    """A convolution whose output at one place is `types` capsules of `dim` numbers.

    form: "squash" (dynamic: vectors), "sigmoid" (em: poses and activations), "norm" (attention: LayerNorm poses),
    "score" (heinsen: poses and scores). batch_norm: before each convolution.

    shares: "squash" computes squash(convolution / shares + shift). Its weights start from a normal distribution of
    standard deviation 0.1, cut at twice that, so that a step of Adam at 1e-3 changes them by a hundredth. None means
    `types`: in the public code of dynamic, the types of a place share the convolution by one step of routing, and shift
    is 0.1. 0 means plain squash and PyTorch's initial weights. Where kernels are 9 x 9 x 256, the same step changes
    those by a quarter, and all capsules saturate at once.

    grouping: "channels" makes a capsule of `dim` channels at one place. "places", as in a public port, makes it of
    `dim` consecutive numbers of the flattened output, which are mostly neighbouring places of one channel.

    (B, channels, H, W) -> pose (B, types, H', W', dim), activation (B, types, H', W') or None.
    """

    @explained
    def __init__(
        self,
        in_channels: int,
        types: int,
        dim: int,
        kernel: int,
        stride: int = 1,
        *,
        padding: int = 0,
        form: str = "squash",
        bias: bool = True,
        batch_norm: bool = False,
        shares: int | None = None,
        shift: float = 0.0,
        grouping: str = "channels",
    ) -> None:
        super().__init__()
        check_choice("form", form, PRIMARY_FORMS)
        check_choice("grouping", grouping, GROUPINGS)
        check_sizes(in_channels=in_channels, types=types, dim=dim, kernel=kernel, stride=stride)
        shares = types if shares is None else shares
        check_sizes(0, padding=padding, shares=shares)
        self.in_channels, self.reach = in_channels, kernel - 2 * padding
        self.types, self.dim, self.form, self.shares, self.shift = types, dim, form, shares, shift
        self.grouping = grouping

        def convolution(channels: int) -> nn.Module:
            conv = nn.Conv2d(in_channels, channels, kernel, stride, padding, bias=bias)
            return nn.Sequential(nn.BatchNorm2d(in_channels), conv) if batch_norm else conv

        self.pose = convolution(types * dim)
        self.activation = convolution(types) if form in ("sigmoid", "score") else None
        self.norm = nn.LayerNorm(dim) if form == "norm" else None
        self._init_squash()

    def reset_parameters(self) -> None:
        """Sets all weights to new initial values."""
        reset_parts(self)
        self._init_squash()

    def _init_squash(self) -> None:
        if self.form != "squash" or not self.shares:
            return
        for name, p in self.pose.named_parameters():
            if p.ndim == 4:
                nn.init.trunc_normal_(p, std=0.1, a=-0.2, b=0.2)
            elif name.endswith("bias"):  # of the convolution, or of the batch normalisation before it
                nn.init.zeros_(p)

    def forward(self, features: Tensor) -> Routed:
        check_floating("features", features)
        if features.ndim != 4:
            raise ValueError(f"features: expected (B, channels, H, W), got {tuple(features.shape)}")
        if features.shape[1] != self.in_channels:
            raise ValueError(f"features: expected {self.in_channels} channels, got {tuple(features.shape)}")
        reach, weight = max(self.reach, 1), next(self.pose.parameters())
        if min(features.shape[2:]) < reach:
            raise ValueError(f"features: expected {reach} places for the kernel, got {tuple(features.shape)}")
        if features.device != weight.device:
            raise ValueError(f"features: on {features.device}, but the layer is on {weight.device}; move one by .to()")
        check_dtype("features", features, weight)
        routed = self._capsules(features)
        if not self.training:  # see `CapsuleLayer`
            check_overflow(routed[:2], False, features=features, weight=weight)
        return routed

    if TYPE_CHECKING:
        __call__ = forward

    def _capsules(self, features: Tensor) -> Routed:
        x = self.pose(features)
        b, _, h, w = x.shape
        if self.grouping == "places":
            pose = x.reshape(b, self.types, h, w, self.dim)
        else:
            pose = x.view(b, self.types, self.dim, h, w).permute(0, 1, 3, 4, 2)  # the pose of one capsule at one place
        if self.form == "squash":
            return Routed(squash_poses(pose, 1 / (self.shares or 1), self.shift))
        if self.norm is not None:
            return Routed(layer_norm_poses(pose, self.norm.weight, self.norm.bias, self.norm.eps))
        assert self.activation is not None
        a = self.activation(features)
        if self.form == "sigmoid":
            return Routed(pose, a.sigmoid(), kind="probability")
        return Routed(pose, a, kind="score")

    def extra_repr(self) -> str:
        grouping = "" if self.grouping == "channels" else f", grouping={self.grouping!r}"
        return f"types={self.types}, dim={self.dim}, form={self.form!r}{grouping}"


class CapsuleLayer(FiniteModule):
    """The base of dense and convolutional layers: transforms, the algorithm's learned tensors, the call that routes.

    A layer takes poses and activations of the kind that its algorithm declares (`input_activation`). It also takes the
    `Routed` of another layer and converts its activations: lengths are in the pose already, scores are logits.
    """

    weight: nn.Parameter  # (J, d, G, h)

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
        check_choice("pose", pose, ("vector", "matrix"))
        check_choice("backend", backend, BACKENDS)
        self.rows, d = pose_shape("in_dim", in_dim, pose)
        rows, h = pose_shape("out_dim", out_dim, pose)
        if rows != self.rows:
            raise ValueError(f"out_dim: expected {self.rows} rows like in_dim's pose, got {rows} ({out_dim})")
        self.groups, self.parents = groups, parents
        self.in_dim, self.out_dim = rows * d, rows * h
        g, j = groups or 1, parents or 1
        sizes = Sizes(groups, j, self.out_dim)

        self.name, self.routing = routing, make_routing(routing, options or {})
        self._specs = self.routing.learned(sizes)
        self.memory = self.routing.memory()
        self.output_norm = self.routing.output_norm(sizes)
        self.single = dataclasses.replace(self.routing, iterations=1) if self.routing.stepwise else None
        self.backend = choose_backend(routing, backend, self.routing.explicit)

        self.weight = nn.Parameter(torch.empty(j, d, g, h))
        biased = self.routing.vote_bias if vote_bias is None else vote_bias
        self.bias = nn.Parameter(torch.empty(j, rows, g, h)) if biased else None
        self.learned = nn.ParameterDict()
        for name, spec in self._specs.items():
            if spec.state:
                self.register_buffer(name, torch.empty(spec.shape, dtype=compute_dtype(self.weight)))
            else:
                self.learned[name] = nn.Parameter(torch.empty(spec.shape))
        self.reset_parameters()
        self.hidden = False  # whether another layer above has the objective; a stack says so
        self._compared = False  # whether activations given by hand were compared with lengths

    def _apply(self, *given: Any, **named: Any) -> Self:  # what .to() and .half() call
        """Keeps an algorithm's state in the dtype that routing computes in: half precision would lose its steps."""
        state = {name: self.get_buffer(name) for name, spec in self._specs.items() if spec.state}
        super()._apply(*given, **named)  # type: ignore[no-untyped-call]
        for name, x in state.items():
            new = self.get_buffer(name)
            if new.dtype != compute_dtype(new):
                setattr(self, name, x.to(new.device, compute_dtype(new)))
        return self

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets transforms, learned tensors and coefficients to their initial values."""
        self.routing.init_weights(self.weight, Sizes(self.groups, self.parents or 1, self.out_dim))
        if self.bias is not None:
            self.bias.zero_()
        for name, spec in self._specs.items():
            value = self.get_buffer(name) if spec.state else self.learned[name]
            if spec.random:
                value.normal_()
            else:
                value.fill_(spec.start)
        reset_parts(self)

    def forward(
        self,
        u: Tensor | Routed,
        activation: Tensor | None = None,
        *,
        coupling: bool = False,
        record: bool = False,
        pose: Tensor | None = None,
        once: bool = False,
    ) -> Routed:
        """pose: the parents' pose to continue from, shaped like the result's. once: take one step, as `step` does."""
        u, activation, transform, grid = self._children(u, activation)
        if self.single is None and (once or pose is not None):
            raise TypeError(f"step: {self.name} routing has no single step: it cannot go on from a given pose")
        b, *places = (u.shape[0],) if grid is None else grid
        check_shape("pose", pose, (b, transform.weight.shape[0], *places, self.out_dim), "the parents' pose so far")
        if pose is not None and grid is not None:
            pose = pose.permute(0, 2, 3, 1, 4).flatten(0, 2)
        routing = self.single if once and self.single else self.routing
        return place(self._route(routing, u, activation, transform, coupling=coupling, record=record, pose=pose), grid)

    if TYPE_CHECKING:
        __call__ = forward

    def step(
        self,
        u: Tensor | Routed,
        pose: Tensor | None = None,
        activation: Tensor | None = None,
        *,
        coupling: bool = False,
    ) -> Routed:
        """One routing step from the parents' `pose`, shaped like the result's; None is the first."""
        return self(u, activation, coupling=coupling, pose=pose, once=True)

    def votes(self, u: Tensor | Routed) -> Tensor:
        """The votes of children (B, I, J, D), to look at. The places of a convolution are part of B."""
        u, _, transform, _ = self._children(u, None)
        return make_votes(transform, u).explicit()

    def _children(self, u: Tensor | Routed, activation: Tensor | None) -> Children:
        raise TypeError(f"{type(self).__name__} declares no children")

    def take(self, u: Tensor | Routed, activation: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Poses and activations as this layer's algorithm takes them, from another layer's `Routed` or as given."""
        takes = self.routing.input_activation
        if not isinstance(u, Routed):
            return u, activation
        if activation is not None:
            raise ValueError("activation: expected None, for the Routed given has its own")
        a, kind = u.activation, u.kind
        if a is None or (kind == "length" and takes is None):
            return u.pose, None
        if kind == "score" and takes != "score":
            a = a.sigmoid()
        elif kind in ("length", "probability") and takes == "score":
            a = a.logit(torch.finfo(a.dtype).eps)
        return u.pose, a

    def _refuse_lengths(self, u: Tensor, activation: Tensor) -> None:
        """Refuses activations that are the lengths of `u`, which would scale poses that have these lengths already:
        votes and gradients would vanish layer by layer.

        Compares plain tensors only, and only until they pass once, because each comparison makes the device wait.
        """
        if self._compared or not activation.numel() or u.device.type == "meta" or is_transformed():
            return
        if torch.compiler.is_compiling() or (u.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        a, n = activation.detach().to(compute_dtype(u)), length(u.detach()).to(compute_dtype(u))
        inside = (a.max() > 0) & (a.max() < 1)  # a squashed length is; all absent and all present are not
        if bool(inside & ((a - n).abs() <= 1e-3 * n).all()):
            raise ValueError(f"activation: these are the lengths of u, which {self.name} routing has in its poses "
                             "already; leave them out, or give the layer the Routed itself")
        self._compared = True

    def _tensors(self, dtype: torch.dtype, repeats: int, parents: int, memory: Memory | None) -> Tensors:
        """The algorithm's learned tensors; what children or parents share is repeated."""
        learned = self.learned  # keeps each under its own name as an attribute, the quickest way to it
        tensors: Tensors = {
            name: getattr(self if spec.state else learned, name) for name, spec in self._specs.items()
        }
        if memory is not None:
            tensors = memory.keep(tensors, self.weight, self.hidden)
        for name, spec in self._specs.items():
            x = as_dtype(tensors[name], dtype)
            if self.parents is None and spec.parents is not None:
                x = x.expand(*(parents if k == spec.parents % x.ndim else -1 for k in range(x.ndim)))
            tensors[name] = x.repeat_interleave(repeats, 0) if spec.per_child and repeats > 1 else x
        return tensors

    def _transform(self, parents: int, window: Window | None = None, coordinates: bool = False) -> Transform:
        """parents: how many there are if the layer makes as many as it has children; they share one transform."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if self.parents is None:
            weight = weight.expand(parents, *weight.shape[1:])
            bias = None if bias is None else bias.expand(parents, *bias.shape[1:])
        return Transform(weight, bias, self.rows, window, coordinates)

    def _route(
        self,
        routing: Routing,
        u: Tensor,
        activation: Tensor | None,
        transform: Transform,
        *,
        coupling: bool = False,
        record: bool = False,
        pose: Tensor | None = None,
    ) -> Routed:
        """Routes checked children to parents. The places of a convolution are part of the batch axis."""
        repeats = 1 if transform.window is not None else math.prod(u.shape[1:-1]) // transform.weight.shape[2]
        recorded = self.training and torch.is_grad_enabled() and not is_transformed()
        memory = self.memory if recorded else None  # whether the algorithm's own training step may follow
        learned = self._tensors(compute_dtype(u, transform.weight), repeats, transform.weight.shape[0], memory)
        routed = route(
            self.name,
            routing,
            transform,
            u,
            activation,
            learned,
            backend=self.backend,
            coupling=coupling,
            record=record,
            pose=pose,
            memory=memory,
            output_norm=None if self.output_norm is None else self._normalise,
        )
        if not self.training:  # training has a guard of its own, which can step back
            own = {f"learned {name}": x for name, x in learned.items()}
            given = {"u": u, "activation": activation, "weight": self.weight, **own}
            check_overflow((routed.pose, routed.activation, routed.variance), False, **given)
        return routed

    def _normalise(self, activation: Tensor, early: bool) -> Tensor:
        norm = self.output_norm
        assert norm is not None
        activation = activation.to(self.weight.dtype)  # routing computes in fp32
        if not (early and norm.training):
            normed: Tensor = norm(activation)
            return normed
        modes = [(part, part.training) for part in norm.modules()]  # some may be frozen
        norm.eval()  # its statistics are those of the last iteration
        normed = norm(activation)
        for part, training in modes:
            part.training = training
        return normed

    def _check(self, u: Tensor, activation: Tensor | None, types: int | None) -> None:
        """u, a tensor of floating-point numbers. types: of children (B, types, H, W, D); None: children (B, I, D)."""
        shape, ndim = ("(B, I, D)", 3) if types is None else ("(B, types, H, W, D)", 5)
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
            if self.routing.input_activation == "probability":
                check_probability("activation", activation)
            elif self.routing.input_activation is None:
                self._refuse_lengths(u, activation)
        if types is not None and u.shape[1] != types:
            raise ValueError(f"u: expected {types} types, got {u.shape[1]} in {tuple(u.shape)}")

    def set_iterations(self, iterations: int) -> None:
        self.routing = dataclasses.replace(self.routing, iterations=iterations)


class DenseCapsules(CapsuleLayer):
    """Every child votes for every parent.

    routing: a name in `ROUTING`; **options are the algorithm's own (iterations, leaky, eps, ...).
    in_capsules: None takes any number of children, one transform for all of them. out_capsules: None has as many
    parents as children come. shared: children are (B, types, H, W, D) and share their transform over positions,
    in_capsules counts types; coordinates: add each child's place to its votes. pose: "vector" or "matrix"; a
    dimension given as (rows, columns) is a matrix of that shape.

    u (B, I, D_in), activation (B, I) or None, or a Routed -> Routed with pose (B, J, D_out). Without `shared`,
    (B, types, H, W, D) is flattened as (types, H, W).
    """

    @explained
    def __init__(
        self,
        routing: str = "dynamic",
        *,
        in_capsules: int | None,
        in_dim: Dim,
        out_capsules: int | None,
        out_dim: Dim,
        pose: str = "vector",
        shared: bool = False,
        coordinates: bool = False,
        backend: str = "auto",
        **options: Any,
    ) -> None:
        for name, size in (("in_capsules", in_capsules), ("out_capsules", out_capsules)):
            if size is not None:
                check_sizes(**{name: size})
        if out_capsules is None and in_capsules is not None:
            raise ValueError(f"out_capsules: None (any number) needs in_capsules=None too, got {in_capsules}")
        if shared and in_capsules is None:
            raise ValueError("in_capsules: shared=True has a transform per type and needs their number, got None")
        if coordinates and not shared:
            raise ValueError("coordinates: they need shared=True, whose children have a place; got shared=False")
        vote_bias = options.pop("vote_bias", None)
        super().__init__(routing, in_capsules, in_dim, out_capsules, out_dim, pose, vote_bias, backend, options)
        self.shared, self.coordinates = shared, coordinates

    def _children(self, u: Tensor | Routed, activation: Tensor | None) -> Children:
        """Checked, (B, I, D), or with their places (B, types, H, W, D) where those count."""
        u, activation = self.take(u, activation)
        check_floating("u", u)
        if u.ndim == 5 and not self.shared:
            u = u.flatten(1, 3)
            activation = None if activation is None else activation.flatten(1)
        self._check(u, activation, self.groups if self.shared else None)
        if 0 in u.shape[1:-1]:
            raise ValueError(f"u: axis I (lower capsules) is empty in {tuple(u.shape)}; routing needs at least one")
        if self.groups is not None and not self.shared and u.shape[1] != self.groups:
            raise ValueError(
                f"u: expected {self.groups} capsules, got {u.shape[1]} in {tuple(u.shape)}; "
                "in_capsules=None takes any number"
            )
        return u, activation, self._transform(u.shape[1], coordinates=self.coordinates), None

    def extra_repr(self) -> str:
        shared = ", shared" if self.shared else ""
        return (
            f"{self.groups or 'any'} x {self.in_dim} -> {self.parents or 'as many'} x {self.out_dim}, "
            f"{self.routing}, backend={self.backend!r}{shared}"
        )


class ConvCapsules(CapsuleLayer):
    """Children within a k x k window vote for the parents at its centre; transforms are shared over places.

    over: what a child's couplings are normalised over, parent "types" at each place or "positions" too, that is
    every type and place that covers the child; None is the algorithm's own (em: "positions").
    scrambled: mixes poses and places of a window as attention's public code does, which views windows
    (types, k, k, D, H' W') as (types, k, k, H' W', D). It is for weights that were trained that way.

    u (B, types, H, W, D_in), activation (B, types, H, W) or None, or a Routed -> Routed with pose
    (B, out_types, H', W', D_out).
    """

    @explained
    def __init__(
        self,
        routing: str = "attention",
        *,
        in_types: int,
        in_dim: Dim,
        out_types: int,
        out_dim: Dim,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        pose: str = "vector",
        **options: Any,
    ) -> None:
        check_sizes(in_types=in_types, out_types=out_types, kernel=kernel, stride=stride)
        check_sizes(0, padding=padding)
        vote_bias, over, scrambled = (options.pop(name, None) for name in ("vote_bias", "over", "scrambled"))
        backend = options.pop("backend", "auto")
        children = in_types * kernel * kernel
        super().__init__(routing, children, in_dim, out_types, out_dim, pose, vote_bias, backend, options)
        self.in_types, self.kernel, self.stride, self.padding = in_types, kernel, stride, padding
        self.over = self.routing.over if over is None else over
        check_choice("over", self.over, ("types", "positions"))
        self.scrambled = bool(scrambled)
        if scrambled and (padding or self.over == "positions" or self.routing.input_activation is not None):
            raise ValueError("scrambled: expected padding=0, over='types' and an algorithm without activations, whose "
                             f"poses alone change places; got padding={padding}, over={self.over!r}, {routing!r}")

    def _children(self, u: Tensor | Routed, activation: Tensor | None) -> Children:
        u, activation = self.take(u, activation)
        check_floating("u", u)
        self._check(u, activation, self.in_types)
        p, k = self.padding, self.kernel
        if min(u.shape[2], u.shape[3]) + 2 * p < k:
            raise ValueError(f"u: {u.shape[2]} x {u.shape[3]} places, padded by {p}, do not fill kernel {k}")
        height, width = ((size + 2 * p - k) // self.stride + 1 for size in u.shape[2:4])
        window = Window(k, self.stride, p, self.over)
        if self.scrambled:
            if activation is not None:
                raise ValueError("activation: expected None with scrambled=True, whose windows have poses alone")
            windows = patches(u, k, self.stride).permute(0, 3, 4, 1, 2)  # (B, types * k * k, D, H', W')
            u, window = windows.reshape(u.shape[0], -1, height, width, self.in_dim), Window(1, 1, 0, self.over)
        transform = self._transform(self.weight.shape[0], window)
        return u, activation, transform, (u.shape[0], height, width)

    def extra_repr(self) -> str:
        return (
            f"{self.in_types} x {self.in_dim} -> {self.parents} x {self.out_dim}, kernel={self.kernel}, "
            f"stride={self.stride}, padding={self.padding}, over={self.over!r}, {self.routing}, "
            f"backend={self.backend!r}"
        )


def place(routed: Routed, grid: tuple[int, int, int] | None) -> Routed:
    """Move the places of a convolutional layer, (B, H', W'), from the batch axis to where they belong."""
    if grid is None:
        return routed

    def parents(x: Any) -> Any:
        """(B H' W', J, ...) -> (B, J, H', W', ...)"""
        return None if x is None else x.view(*grid, *x.shape[1:]).movedim(3, 1)

    def couplings(x: Any) -> Any:
        """(B H' W', I, J) -> (B, I, J, H', W')"""
        return None if x is None else x.unflatten(0, grid).movedim((1, 2), (3, 4))

    pose, a, c, variance, history, kind = routed
    steps = None
    if history is not None:
        steps = tuple(Step(couplings(x.coupling), parents(x.pose), parents(x.activation)) for x in history)
    return Routed(parents(pose), parents(a), couplings(c), parents(variance), steps, kind)


def make_routing(name: str, options: dict[str, Any]) -> Routing:
    """The algorithm with its options. An error names the nearest algorithm or option to a wrong one."""
    try:
        algorithm = ROUTING[name]
    except (KeyError, TypeError):  # TypeError: what cannot be looked up, such as a list
        check_choice("routing", name, ROUTING)
        raise
    known = [f.name for f in dataclasses.fields(algorithm)]
    for key in options:
        if key not in known:
            raise TypeError(f"{key}: no option of {name} routing, which has {', '.join(known)}{nearest(key, known)}")
    return algorithm(**options)


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
