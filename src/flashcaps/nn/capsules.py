"""Capsule layers: primary, dense, convolutional. They hold parameters, make votes and call a routing algorithm."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.common.norm import layer_norm_poses, squash_poses
from ..kernels.common.patches import patches
from ..kernels.dispatch import leaves_patches
from ..routing import Routed
from ..routing.checks import check_choice, check_dtype, check_floating, check_overflow, check_sizes, is_transformed
from ..routing.contract import compute_dtype
from ..routing.math import OverPositions, Softmax, over_parents
from ..routing.votes import Votes, Windows, centres, covered
from .base import CapsuleLayer, Dim, FiniteModule

PRIMARY_FORMS = ("squash", "sigmoid", "norm", "score")


class PrimaryCapsules(FiniteModule):
    """A convolution whose output at one place is `types` capsules of `dim` numbers.

    form: "squash" (dynamic: vectors), "sigmoid" (em: poses and activations), "norm" (attention: LayerNorm poses),
    "score" (heinsen: poses and scores). batch_norm: before each convolution. original: divide by 32 and add 0.1
    before squash, as dynamic's public code does.

    (B, channels, H, W) -> pose (B, types, H', W', dim), activation (B, types, H', W') or None.
    """

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
        original: bool = False,
    ) -> None:
        super().__init__()
        check_choice("form", form, PRIMARY_FORMS)
        check_sizes(in_channels=in_channels, types=types, dim=dim, kernel=kernel, stride=stride)
        check_sizes(0, padding=padding)
        self.in_channels, self.reach = in_channels, kernel - 2 * padding
        self.types, self.dim, self.form, self.original = types, dim, form, original

        def convolution(channels: int) -> nn.Module:
            conv = nn.Conv2d(in_channels, channels, kernel, stride, padding, bias=bias)
            return nn.Sequential(nn.BatchNorm2d(in_channels), conv) if batch_norm else conv

        self.pose = convolution(types * dim)
        self.activation = convolution(types) if form in ("sigmoid", "score") else None
        self.norm = nn.LayerNorm(dim) if form == "norm" else None

    def forward(self, features: Tensor) -> Routed:
        check_floating("features", features)
        if features.ndim != 4:
            raise ValueError(f"features: expected (B, channels, H, W), got {tuple(features.shape)}")
        if features.shape[1] != self.in_channels:
            raise ValueError(f"features: expected {self.in_channels} channels, got {tuple(features.shape)}")
        reach, weight = max(self.reach, 1), next(self.parameters())
        if min(features.shape[2:]) < reach:
            raise ValueError(f"features: expected {reach} places for the kernel, got {tuple(features.shape)}")
        if features.device != weight.device:
            raise ValueError(f"features: on {features.device}, but the layer is on {weight.device}; move one by .to()")
        check_dtype("features", features, weight)
        routed = self._capsules(features)
        if not self.training:  # see `CapsuleLayer`
            check_overflow(routed[:2], False, features=features, weight=weight)
        return routed

    def _capsules(self, features: Tensor) -> Routed:
        x = self.pose(features)
        b, _, h, w = x.shape
        pose = x.view(b, self.types, self.dim, h, w).permute(0, 1, 3, 4, 2)  # the pose of one capsule at one place
        if self.form == "squash":
            return Routed(squash_poses(pose, 1 / 32, 0.1) if self.original else squash_poses(pose))
        if self.norm is not None:
            return Routed(layer_norm_poses(pose, self.norm.weight, self.norm.bias, self.norm.eps))
        assert self.activation is not None
        a = self.activation(features)
        return Routed(pose, a.sigmoid() if self.form == "sigmoid" else a)

    def extra_repr(self) -> str:
        return f"types={self.types}, dim={self.dim}, form={self.form!r}"


class DenseCapsules(CapsuleLayer):
    """Every child votes for every parent.

    routing: a name in `ROUTING`; **options are the algorithm's own (iterations, leaky, eps, ...).
    in_capsules: None takes any number of children, one transform for all of them. out_capsules: None has as many
    parents as children come. shared: children are (B, types, H, W, D) and share their transform over positions,
    in_capsules counts types; coordinates: add each child's place to its votes. pose: "vector" or "matrix"; a
    dimension given as (rows, columns) is a matrix of that shape.

    u (B, I, D_in), activation (B, I) or None -> Routed with pose (B, J, D_out). Without `shared`, (B, types, H, W, D)
    is flattened as (types, H, W).
    """

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

    def forward(
        self, u: Tensor, activation: Tensor | None = None, *, coupling: bool = False, record: bool = False
    ) -> Routed:
        u, activation, yx = self._children(u, activation)
        return self._route(u, activation, yx=yx, coupling=coupling, record=record)

    def step(
        self, u: Tensor, pose: Tensor | None = None, activation: Tensor | None = None, *, coupling: bool = False
    ) -> Routed:
        """One routing step from the parents' `pose` (B, J, D); None is the first."""
        u, activation, yx = self._children(u, activation)
        self._check_step(pose, (u.shape[0], self.parents or u.shape[1], self.out_dim))
        return self._route(u, activation, yx=yx, coupling=coupling, step=True, pose=pose)

    def _children(self, u: Tensor, activation: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        check_floating("u", u)
        yx = None
        if self.shared:
            self._check(u, activation, "(B, types, H, W, D)", 5)
            if u.shape[1] != self.groups:
                raise ValueError(f"u: expected {self.groups} types, got {u.shape[1]} in {tuple(u.shape)}")
            yx = centres(u.shape[2], u.shape[3], u.device) if self.coordinates else None
        if u.ndim == 5:
            u = u.flatten(1, 3)
            activation = None if activation is None else activation.flatten(1)
        self._check(u, activation, "(B, I, D)", 3)
        if u.shape[1] == 0:
            raise ValueError(f"u: axis I (lower capsules) is empty in {tuple(u.shape)}; routing needs at least one")
        if self.groups is not None and not self.shared and u.shape[1] != self.groups:
            raise ValueError(
                f"u: expected {self.groups} capsules, got {u.shape[1]} in {tuple(u.shape)}; "
                "in_capsules=None takes any number"
            )
        return u, activation, yx

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

    u (B, types, H, W, D_in), activation (B, types, H, W) or None -> Routed with pose (B, out_types, H', W', D_out).
    """

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
        vote_bias, over = options.pop("vote_bias", None), options.pop("over", None)
        backend = options.pop("backend", "auto")
        children = in_types * kernel * kernel
        super().__init__(routing, children, in_dim, out_types, out_dim, pose, vote_bias, backend, options)
        self.in_types, self.kernel, self.stride, self.padding = in_types, kernel, stride, padding
        self.over = self.routing.over if over is None else over
        check_choice("over", self.over, ("types", "positions"))

    def forward(
        self, u: Tensor, activation: Tensor | None = None, *, coupling: bool = False, record: bool = False
    ) -> Routed:
        x, activation, softmax, grid = self._children(u, activation, gather=coupling or record)
        routed = self._route(x, activation, softmax=softmax, coupling=coupling, record=record, dtype=u.dtype)
        return place(routed, grid)

    def step(
        self, u: Tensor, pose: Tensor | None = None, activation: Tensor | None = None, *, coupling: bool = False
    ) -> Routed:
        """One routing step from the parents' `pose` (B, out_types, H', W', D); None is the first."""
        x, activation, softmax, grid = self._children(u, activation, gather=coupling)
        self._check_step(pose, (grid[0], self.parents or 0, *grid[1:], self.out_dim))
        if pose is not None:
            pose = pose.permute(0, 2, 3, 1, 4).flatten(0, 2)
        common: dict[str, Any] = {"softmax": softmax, "coupling": coupling, "dtype": u.dtype}
        return place(self._route(x, activation, step=True, pose=pose, **common), grid)

    def _children(
        self, u: Tensor, activation: Tensor | None, *, gather: bool = True
    ) -> tuple[Tensor, Tensor | None, Softmax, tuple[int, int, int]]:
        """The children of every place, (B * H' * W', T * k * k, D), and what normalises over their parents.

        gather=False: the image itself, where kernels find children in it.
        """
        self._check(u, activation, "(B, types, H, W, D)", 5)
        if u.shape[1] != self.in_types:
            raise ValueError(f"u: expected {self.in_types} types, got {u.shape[1]} in {tuple(u.shape)}")
        u = u.to(compute_dtype(u, self.weight))  # before patches overlap: their gradients are summed in it
        activation = None if activation is None else activation.to(u.dtype)
        if activation is not None and self.routing.input_activation is None and self.bias is None:
            u, activation = u * activation[..., None], None  # before patches repeat it
        p = self.padding
        if min(u.shape[2], u.shape[3]) + 2 * p < self.kernel:
            raise ValueError(f"u: {u.shape[2]} x {u.shape[3]} places, padded by {p}, do not fill kernel {self.kernel}")
        if p:
            absent = -math.inf if self.routing.input_activation == "score" else 0.0
            if activation is None and (self.routing.input_activation is not None or self.bias is not None):
                activation = u.new_full(u.shape[:-1], math.inf if self.routing.input_activation == "score" else 1.0)
            activation = None if activation is None else F.pad(activation, (p, p, p, p), value=absent)
            u = F.pad(u, (0, 0, p, p, p, p))
        softmax: Softmax = over_parents
        if self.over == "positions":
            h, w = u.shape[2:4]
            child = covered(h, w, self.kernel, self.stride, u.device)
            softmax = OverPositions(child, h * w, (h, w, self.kernel, self.stride))
        height, width = ((size - self.kernel) // self.stride + 1 for size in u.shape[2:4])
        grid = (u.shape[0], height, width)
        taken = activation is None or self.routing.input_activation is not None
        if taken and not gather and self._leaves_patches(u, softmax):
            return u, activation, softmax, grid
        if activation is not None:
            activation = patches(activation[..., None], self.kernel, self.stride).flatten(0, 2)[..., 0]
        return patches(u, self.kernel, self.stride).flatten(0, 2), activation, softmax, grid

    def _windows(self, image: Tensor) -> Windows:
        return Windows(image, self.weight.to(image.dtype), self.rows, self.kernel, self.stride)

    def _leaves_patches(self, image: Tensor, softmax: Softmax) -> bool:
        active = self.name == "attention" and self.routing.input_activation is not None  # whose spread needs patches
        if self.bias is not None or active or (self.backend == "auto" and is_transformed()):
            return False
        return leaves_patches(self.name, self.backend, self._windows(image), softmax)

    def _source(self, u: Tensor, yx: Tensor | None) -> Votes | Windows:
        return self._windows(u) if u.ndim == 5 else super()._source(u, yx)

    def extra_repr(self) -> str:
        return (
            f"{self.in_types} x {self.in_dim} -> {self.parents} x {self.out_dim}, kernel={self.kernel}, "
            f"stride={self.stride}, padding={self.padding}, over={self.over!r}, {self.routing}, "
            f"backend={self.backend!r}"
        )


def place(routed: Routed, grid: tuple[int, int, int]) -> Routed:
    """Move the places of a convolutional layer from the batch axis to where they belong."""
    b, h, w = grid

    def back(x: Tensor, *order: int) -> Tensor:
        return x.view(b, h, w, *x.shape[1:]).permute(*order)

    pose, a, c, variance, history = routed
    return Routed(
        back(pose, 0, 3, 1, 2, 4),
        None if a is None else back(a, 0, 3, 1, 2),
        None if c is None else back(c, 0, 3, 4, 1, 2),
        None if variance is None else back(variance, 0, 3, 1, 2, 4),
        None if history is None else tuple(
            x._replace(coupling=back(x.coupling, 0, 3, 4, 1, 2), pose=back(x.pose, 0, 3, 1, 2, 4)) for x in history
        ),
    )
