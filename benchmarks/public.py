"""Layers in the style of public capsule code, written afresh: every vote is formed by a broadcast matmul and stored.

They exist to be measured against; tests/benchmarks/test_public.py holds them to the same numbers as flashcaps. Weights
are (G, J, d, h) as such code keeps them, copied from a flashcaps layer, whose place they can take in a network.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashcaps import ConvCapsules, Routed
from flashcaps.functional import inverse_temperature, squash
from flashcaps.kernels.votes import centres, covered, patches
from flashcaps.nn.capsules import place
from flashcaps.routing.math import OverPositions, Softmax, over_parents

Maybe = Tensor | None


def parameter(x: Tensor) -> nn.Parameter:
    return nn.Parameter(x.detach().clone().contiguous())


class PublicVotes(nn.Module):
    """vote_ij = pose_i @ W_ij by broadcasting. poses (B, I, D) -> (B, I, J, C * h)"""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight = parameter(layer.weight.permute(2, 0, 1, 3))  # (G, J, d, h)
        self.bias = None if layer.bias is None else parameter(layer.bias.permute(2, 0, 1, 3))  # (G, J, C, h)
        self.rows = layer.rows

    def forward(self, u: Tensor, yx: Tensor | None = None) -> Tensor:
        b, i, dim = u.shape
        g = self.weight.shape[0]
        poses = u.reshape(b, g, i // g, 1, self.rows, dim // self.rows)
        votes = poses @ self.weight[None, :, None]  # (B, G, R, J, C, h)
        if self.bias is not None:
            votes = votes + self.bias[None, :, None]
        if yx is not None:
            votes = votes + self.places(votes, yx)
        return votes.flatten(4).flatten(1, 2)

    def places(self, votes: Tensor, yx: Tensor) -> Tensor:
        """Coordinates (R, 2) where em adds them: the first two of the right-hand column, or of a vector."""
        c, h = votes.shape[-2:]
        extra = votes.new_zeros(len(yx), 1, c, h)
        if c == 1:
            extra[:, 0, 0, :2] = yx.to(votes.dtype)
        else:
            extra[:, 0, :2, -1] = yx.to(votes.dtype)
        return extra


class PublicCapsules(nn.Module):
    """A layer that stores its votes, in the place of a flashcaps layer. u, activation as that layer's -> Routed"""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.votes, self.routing, self.name = PublicVotes(layer), layer.routing, layer.name
        self.window = (layer.kernel, layer.stride) if isinstance(layer, ConvCapsules) else None
        self.over = getattr(layer, "over", "types")
        self.coordinates = getattr(layer, "coordinates", False)
        self.learn(layer)

    def learn(self, layer: Any) -> None:
        """Take over what the algorithm learns."""

    def forward(self, u: Tensor | Routed, activation: Tensor | None = None, **_: Any) -> Routed:
        return self.step(u, None, activation)

    def step(
        self, u: Tensor | Routed, pose: Tensor | None = None, activation: Tensor | None = None, **_: Any
    ) -> Routed:
        if isinstance(u, Routed):
            u, activation = u.pose, u.activation
        if self.window is None:
            yx = centres(u.shape[2], u.shape[3], u.device) if self.coordinates else None
            u, activation = u.flatten(1, -2), None if activation is None else activation.flatten(1)
            return self.route(self.votes(u, yx), activation, pose)
        kernel, stride = self.window
        softmax: Softmax = over_parents
        if self.over == "positions":
            h, w = u.shape[2:4]
            softmax = OverPositions(covered(h, w, kernel, stride, u.device), h * w)
        x = patches(u, kernel, stride)
        grid = (x.shape[0], x.shape[1], x.shape[2])
        if activation is not None:
            activation = patches(activation[..., None], kernel, stride).flatten(0, 2)[..., 0]
        if pose is not None:
            pose = pose.permute(0, 2, 3, 1, 4).flatten(0, 2)
        return place(self.route(self.votes(x.flatten(0, 2)), activation, pose, softmax), grid)

    def route(self, votes: Tensor, activation: Maybe, pose: Maybe, softmax: Softmax = over_parents) -> Routed:
        raise TypeError(f"{type(self).__name__} routes nothing")


class PublicDynamic(PublicCapsules):
    """The loop of softmax, weighted sum and agreement."""

    def route(self, votes: Tensor, activation: Maybe, pose: Maybe, softmax: Softmax = over_parents) -> Routed:
        b = votes.new_zeros(votes.shape[:3])
        for t in range(self.routing.iterations):
            c = softmax(b)
            s = (c[..., None] * votes).sum(1)
            v = squash(s)
            if t < self.routing.iterations - 1:
                b = b + (votes * v[:, None]).sum(-1)
        return Routed(v, v.norm(dim=-1))


class PublicAttention(PublicCapsules):
    """Votes, agreement with the parents so far, softmax, weighted sum, LayerNorm."""

    def learn(self, layer: Any) -> None:
        self.norm = nn.LayerNorm(layer.out_dim)

    def forward(self, u: Tensor, activation: Tensor | None = None, **_: Any) -> Routed:
        votes, pose = self.votes(u.flatten(1, -2)), None
        for _ in range(self.routing.iterations):
            pose = self.route(votes, activation, pose).pose
        return Routed(pose)

    def route(self, votes: Tensor, activation: Maybe, pose: Maybe, softmax: Softmax = over_parents) -> Routed:
        if pose is None:
            pose = votes.new_zeros(votes.shape[0], *votes.shape[2:])
        a = (votes * pose[:, None]).sum(-1) * votes.shape[-1] ** -0.5
        return Routed(self.norm((softmax(a)[..., None] * votes).sum(1)))


def fit(votes: Tensor, r: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Total weight (B, J), mean and variance (B, 1, J, D) of stored votes."""
    total = r.sum(1)
    share = (r / (total[:, None] + eps))[..., None]
    mu = (share * votes).sum(1, keepdim=True)
    return total, mu, (share * (votes - mu) ** 2).sum(1, keepdim=True) + eps


def log_density(votes: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((votes - mu) ** 2 / variance + variance.log()).sum(-1)


class PublicEM(PublicCapsules):
    """M-step and E-step on stored votes."""

    def learn(self, layer: Any) -> None:
        for name in ("relative", "norm_activation"):
            if getattr(layer.routing, name):
                raise ValueError(f"public: em of stored votes has no {name}=True")
        self.beta_u, self.beta_a = (parameter(layer.learned[name]) for name in ("beta_u", "beta_a"))

    def route(self, votes: Tensor, activation: Maybe, pose: Maybe, softmax: Softmax = over_parents) -> Routed:
        r = softmax(torch.zeros_like(votes[..., 0]))
        iterations = self.routing.iterations
        for t, inverse in enumerate(inverse_temperature(iterations)):
            total, mu, variance = fit(votes, r if activation is None else r * activation[..., None], self.routing.eps)
            cost = (self.beta_u[:, None] + 0.5 * variance[:, 0].log()) * total[..., None]
            logit = inverse * (self.beta_a - cost.sum(-1))
            if t < iterations - 1:
                r = softmax(F.logsigmoid(logit)[:, None] + log_density(votes, mu, variance))
        return Routed(mu[:, 0], logit.sigmoid())


class PublicHeinsen(PublicCapsules):
    """E-, D- and M-step on stored votes."""

    def learn(self, layer: Any) -> None:
        self.use, self.ignore = (parameter(layer.learned[name]) for name in ("beta_use", "beta_ignore"))

    def route(self, votes: Tensor, activation: Maybe, pose: Maybe, softmax: Softmax = over_parents) -> Routed:
        f = votes.new_ones(()) if activation is None else activation.sigmoid()[..., None]
        r = softmax(torch.zeros_like(votes[..., 0]))
        for t in range(self.routing.iterations):
            use = f * r
            a = (self.use * use).sum(1) - (self.ignore * (f - use)).sum(1)
            _, mu, variance = fit(votes, use, self.routing.eps)
            if t < self.routing.iterations - 1:
                r = softmax(F.logsigmoid(a)[:, None] + log_density(votes, mu, variance))
        return Routed(mu[:, 0], a)


class PublicDiscriminative(PublicCapsules):
    """Weighted sum of stored votes, squashed."""

    def learn(self, layer: Any) -> None:
        self.register_buffer("coefficients", layer.coefficients.clone())

    def route(self, votes: Tensor, activation: Maybe, pose: Maybe, softmax: Softmax = over_parents) -> Routed:
        s = squash((self.coefficients[None, ..., None] * votes).sum(1))
        return Routed(s, s.norm(dim=-1))


PUBLIC: dict[str, type[PublicCapsules]] = {
    "dynamic": PublicDynamic,
    "em": PublicEM,
    "attention": PublicAttention,
    "heinsen": PublicHeinsen,
    "discriminative": PublicDiscriminative,
}


def public_style(layers: nn.ModuleList) -> None:
    """Every capsule layer of a list gives its place to its public-style twin."""
    for k, layer in enumerate(layers):
        layers[k] = PUBLIC[layer.name](layer)
