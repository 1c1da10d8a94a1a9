"""What a figure is made from and what it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import Split
from ..models.base import Model, Output
from ..nn.capsules import CapsuleLayer
from ..nn.stack import CapsuleStack
from ..training.batches import Batch
from ..training.evaluate import answers, forward, is_right
from ..training.recipe import Recipe


class Drawn(NamedTuple):
    """data: what is drawn, as tensors and numbers; figure: a matplotlib Figure; caption: what is seen in this model."""

    data: dict[str, Any]
    figure: Any
    caption: str


class DoesNotApply(ValueError):
    """One line that says why a figure cannot be drawn of this model, and what it would take."""


@dataclass
class Run:
    """A trained model and what is known of it. In a notebook, Run(model, Batch(images, labels, labels, images)) does.

    batch: test examples to look at; where there are none, `missing` says why. rule, threshold: how scores become an
    answer. records: finished runs to compare with; robustness: what was kept of attacks on them. folder: the run's
    own, where it has one.
    """

    model: Model
    batch: Batch | None = None
    missing: str = "no test examples were given"
    name: str = "model"
    class_names: tuple[str, ...] = ()
    rule: str = "top1"
    threshold: float = 0.5
    recipe: Recipe | None = None
    folder: Path | None = None
    split: Split | None = None  # the whole test set, with what its `info` says of each image
    crop: int = 0  # side of the middle of those images that the model sees; 0 is all
    tokens: list[list[str]] | None = None  # of text, for every example
    metrics: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    robustness: list[dict[str, Any]] = field(default_factory=list)

    def examples(self) -> Batch:
        if self.batch is None:
            raise DoesNotApply(f"test examples are needed: {self.missing}")
        return self.batch

    def single(self) -> Batch:
        """Examples of one class each."""
        batch = self.examples()
        if batch.targets.ndim != 1:
            raise DoesNotApply("images with one class each are needed; these hold several")
        return batch

    def images(self) -> Tensor:
        if self.model.image is None:
            raise DoesNotApply("images are needed; this model reads hidden states of text")
        return self.examples().inputs

    def stack(self) -> CapsuleStack:
        capsules = getattr(self.model, "capsules", None)
        if not isinstance(capsules, CapsuleStack):
            raise DoesNotApply(f"capsules are needed; {self.model.name} is a plain network")
        return capsules

    def layer(self) -> CapsuleLayer:
        """The class layer."""
        layer = self.stack().layers[-1]
        assert isinstance(layer, CapsuleLayer)
        return layer

    def need_decoder(self) -> None:
        self.stack()
        if self.model.decoder is None:
            raise DoesNotApply(f"a decoder is needed; {self.model.name} was built without one (decoder=true)")

    @cached_property
    def output(self) -> Output:
        """Of all examples."""
        batch, parts = self.examples(), []
        with torch.no_grad():
            for rows in torch.arange(len(batch.inputs), device=batch.inputs.device).split(100):
                parts.append(forward(self.model, take(batch, rows)))
        routed = parts[0].routed
        if routed is not None:
            active = None if routed.activation is None else torch.cat([p.routed.activation for p in parts])
            routed = routed._replace(pose=torch.cat([p.routed.pose for p in parts]), activation=active, variance=None)
        return Output(torch.cat([p.scores for p in parts]), routed)

    @property
    def right(self) -> Tensor:
        """(N,) bool."""
        return is_right(self.output.scores, self.examples().targets, self.rule, self.threshold)

    @property
    def answers(self) -> Tensor:
        """(N, K) bool."""
        return answers(self.output.scores, self.rule, self.threshold)

    def class_name(self, k: int) -> str:
        return self.class_names[k] if k < len(self.class_names) else str(k)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def take(batch: Batch, rows: Tensor) -> Batch:
    """The examples at `rows`."""
    return batch._replace(**{name: x[rows] for name, x in batch._asdict().items() if x is not None})
