"""Hidden states of any transformer: routed as capsules (heinsen, Fig. 5), or pooled for a linear classifier."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..nn.capsules import CapsuleLayer
from ..nn.stack import CapsuleStack
from ..routing.checks import check_floating
from . import overrides
from .base import Model, Output, init_weights
from .specs import Dense, Grid, Route


def check_states(states: Tensor, mask: Tensor | None, reads: tuple[int, int]) -> None:
    check_floating("states", states)
    if states.ndim != 4 or tuple(states.shape[2:]) != reads:
        raise ValueError(f"states: expected (B, tokens, {', '.join(map(str, reads))}), got {tuple(states.shape)}; "
                         "build the model with the transformer's layers=, width=")
    if mask is not None and mask.shape != states.shape[:2]:
        raise ValueError(f"mask: expected {tuple(states.shape[:2])}, one per token, got {tuple(mask.shape)}")


class SentimentNetwork(Model):
    """states (B, n, l, m) of n tokens in l layers of width m, mask (B, n) -> Output.

    mask: 1 for a token, 0 for padding, a number in between where mixup combined the two; None: all are tokens.
    """

    def __init__(self, layers: int, width: int, features: int, capsules: CapsuleStack, head: nn.Module) -> None:
        super().__init__()
        self.reads = layers, width
        self.depth = nn.Parameter(torch.zeros(layers, width))
        self.linear = nn.Linear(width, features)
        self.norm = nn.LayerNorm(features)
        self.capsules, self.head, self.decoder = capsules, head, None

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Output:
        check_states(states, mask, self.reads)
        u = self.norm(nn.functional.silu(self.linear(states + self.depth)))  # (B, n, l, d)
        routed = self.capsules(u.flatten(1, 2), None if mask is None else self.presence(mask, u))
        return Output(self.head(routed), routed)

    def presence(self, mask: Tensor, u: Tensor) -> Tensor:
        """The activation of every capsule, (B, n * l): log(x / (1 - x)) where scores are taken, else x itself."""
        x = mask.to(u.dtype)
        first = self.capsules.layers[0]
        assert isinstance(first, CapsuleLayer)
        if first.routing.input_activation == "score":
            x = x.logit()  # plus or minus infinity at 1 and 0
        return x[..., None].expand(u.shape[:3]).flatten(1)


@dataclass(frozen=True)
class Sentiment:
    """layers, width: the transformer's. parts: capsules between its states and the classes."""

    changes: ClassVar[dict[str, overrides.Change]] = overrides.TEXT | overrides.ROUTE

    classes: int
    route: Route
    layers: int = 37
    width: int = 1280
    features: int = 64
    parts: int = 64
    dim: int = 2
    about: str = field(default="", repr=False)

    def build(self) -> SentimentNetwork:
        if self.route.counts_children(self.parts, self.dim):
            raise ValueError(f"routing: {self.route.routing!r} keeps a number per child, but sentences have any number "
                             "of tokens; use another algorithm")
        grid, layers = Grid(1, 1, 1, self.features), []
        pose = self.route.pose or "vector"
        for spec in (Dense(self.parts, self.dim, children="any"), Dense(self.classes, self.dim)):
            layer, grid = spec.build(grid, self.route, pose)
            layers.append(layer)
        network = SentimentNetwork(
            self.layers, self.width, self.features, self.route.stack(layers), self.route.head(self.dim)
        )
        init_weights("kaiming", None, network.linear)
        network.image, network.classes = None, self.classes
        return network


class PooledNetwork(Model):
    """states (B, n, l, m) of n tokens in l layers of width m, mask (B, n) -> Output with logits and no capsules.

    x = sum_n mask_n h_n / sum_n mask_n of the last layer's h, or of h = sum_l softmax(w)_l h_l, w learned (as ELMo).
    """

    def __init__(self, layers: int, width: int, classes: int, mixed: bool) -> None:
        super().__init__()
        self.reads = layers, width
        self.mix = nn.Parameter(torch.zeros(layers)) if mixed else None
        self.classifier, self.decoder = nn.Linear(width, classes), None

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Output:
        check_states(states, mask, self.reads)
        if mask is None:
            mask = states.new_ones(states.shape[:2])
        share = mask / mask.sum(1, keepdim=True).clamp_min(1e-6)  # 0 for a text without tokens
        if self.mix is None:
            x = torch.einsum("bn,bnm->bm", share.to(states.dtype), states[:, :, -1])
        else:
            pooled = torch.einsum("bn,bnlm->blm", share.to(states.dtype), states)
            x = torch.einsum("blm,l->bm", pooled, self.mix.softmax(0).to(states.dtype))
        return Output(self.classifier(x), None)


@dataclass(frozen=True)
class Pooled:
    """layers, width: the transformer's. mixed: all its layers, by learned weights; else the last."""

    changes: ClassVar[dict[str, overrides.Change]] = overrides.TEXT

    classes: int
    mixed: bool
    layers: int = 37
    width: int = 1280
    about: str = field(default="", repr=False)

    def build(self) -> PooledNetwork:
        network = PooledNetwork(self.layers, self.width, self.classes, self.mixed)
        network.image, network.classes = None, self.classes
        return network
