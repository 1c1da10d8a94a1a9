"""Linear classifiers over the hidden states of a frozen transformer: what heinsen's network is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from . import overrides as _overrides
from .base import Model, Output
from .sentiment import check_mask, check_states


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
        check_states(states, self.reads)
        if mask is None:
            mask = states.new_ones(states.shape[:2])
        check_mask(mask, states)
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

    changes: ClassVar[dict[str, _overrides.Change]] = _overrides.TEXT

    classes: int
    mixed: bool
    layers: int = 37
    width: int = 1280

    def build(self) -> PooledNetwork:
        network = PooledNetwork(self.layers, self.width, self.classes, self.mixed)
        network.image, network.classes = None, self.classes
        return network
