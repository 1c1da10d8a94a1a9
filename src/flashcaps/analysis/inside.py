"""Inside a model of a run: its capsule layers, the votes for its classes, the receptive fields of its capsules."""

from typing import Any

import torch
from torch import Tensor

from ..nn.capsules import DenseCapsules
from ..nn.trace import LayerTrace, children, iterated
from ..training.batches import Batch
from ..training.evaluate import forward
from ..training.routing_measure import traced
from .figure import DoesNotApply, Run


def trace(run: Run, batch: Batch, iterations: int | None = None) -> list[LayerTrace]:
    """Every capsule layer of the model, from the lowest. The last one's `out` is what the model's head reads."""
    with iterated(run.stack(), iterations):
        return traced(run.model, batch)


def class_votes(run: Run, batch: Batch, iterations: int | None = None) -> tuple[Tensor, LayerTrace]:
    """Every vote for every class capsule, (B, I, J, D), and the trace of the class layer."""
    top = trace(run, batch, iterations)[-1]
    if not isinstance(top.layer, DenseCapsules):
        raise DoesNotApply("a dense class layer is needed; this one is convolutional")
    return top.layer.votes(top.u), top


def receptive_fields(run: Run, batch: Batch) -> Tensor:
    """The pixels that primary capsules at each place see, (H, W, 4): first row, last row, first and last column.

    Computed from the gradient of one place's poses with respect to the image, so it works for any backbone.
    """
    image = run.images()[:1]
    u, _ = children(run.stack(), lambda: forward(run.model, batch._replace(inputs=image)))
    if u.ndim != 5:
        raise DoesNotApply("primary capsules on a grid are needed; these have none")
    h, w = u.shape[2:4]
    network: Any = run.model
    with torch.enable_grad():
        x = torch.rand_like(image).requires_grad_()
        pose = network.primary(network.backbone(x)).pose[0].abs().sum((0, 3))  # (H, W)
        fields = [_extent(torch.autograd.grad(pose[i, j], x, retain_graph=True)[0]) for i in range(h) for j in range(w)]
    return torch.tensor(fields).view(h, w, 4)


def _extent(gradient: Tensor) -> tuple[int, int, int, int]:
    ink = gradient.abs().sum((0, 1)) > 0
    rows, columns = ink.any(1).nonzero()[:, 0], ink.any(0).nonzero()[:, 0]
    if not len(rows):  # every ReLU below is off for this input
        return 0, ink.shape[0] - 1, 0, ink.shape[1] - 1
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])
