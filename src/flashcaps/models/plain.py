"""Plain convolutional networks, the papers' baselines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..nn.backbones import Backbone, Image, output_shape
from . import overrides as _overrides
from .base import Model, Output


class PlainNetwork(Model):
    """images (B, C, H, W) -> Output with logits (B, K) and no capsules."""

    def __init__(self, body: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.body, self.classifier, self.decoder = body, classifier, None

    def forward(self, images: Tensor, chosen: Tensor | None = None) -> Output:
        self.check_images(images)
        if chosen is not None:
            raise ValueError("chosen: a plain network has no decoder to reconstruct with; leave it None")
        return Output(self.classifier(self.body(images).flatten(1)), None)


@dataclass(frozen=True)
class Plain:
    """A backbone, fully connected layers with ReLU, dropout before the last, one logit per class."""

    changes: ClassVar[dict[str, _overrides.Change]] = {
        "image": _overrides.image,
        "classes": _overrides.at_least_one("classes"),
        "dropout": _overrides.probability("dropout"),
    }

    image: Image
    classes: int
    body: Backbone
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0

    def build(self) -> PlainNetwork:
        body = self.body.build(self.image[0])
        sizes = [math.prod(output_shape(body, self.image)), *self.hidden]
        layers: list[nn.Module] = []
        for n, m in zip(sizes, self.hidden, strict=False):
            layers += [nn.Linear(n, m), nn.ReLU(inplace=True)]
        if self.dropout:
            layers.append(nn.Dropout(self.dropout))
        network = PlainNetwork(body, nn.Sequential(*layers, nn.Linear(sizes[-1], self.classes)))
        network.image, network.classes = self.image, self.classes
        return network
