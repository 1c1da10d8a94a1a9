"""Inside a model: the children, couplings and poses of every capsule layer, and the receptive fields of capsules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ..nn.capsules import CapsuleLayer, DenseCapsules
from ..nn.stack import CapsuleStack
from ..routing import Routed, Routing, Sizes, Step
from ..training.batches import Batch
from ..training.evaluate import forward
from .figure import DoesNotApply, Run


@dataclass(frozen=True)
class LayerTrace:
    """One capsule layer: its input, and its coupling and pose after every iteration."""

    layer: CapsuleLayer
    u: Tensor  # (B, I, D) or (B, types, H, W, D)
    activation: Tensor | None
    steps: tuple[Step, ...]
    out: Routed


def children(run: Run, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """The primary capsules of a batch: poses and activations, as the stack of capsule layers gets them."""
    inputs: list[Any] = []
    hook = run.stack().register_forward_pre_hook(lambda module, given: inputs.extend((*given, None)))
    try:
        forward(run.model, batch)
    finally:
        hook.remove()
    return inputs[0], inputs[1]


@contextmanager
def iterated(stack: CapsuleStack, iterations: int | None) -> Iterator[None]:
    """Use another number of routing iterations within the context; None keeps the stack's own."""
    layers = layers_of(stack)
    before = stack.iterations, [layer.routing.iterations for layer in layers]
    try:
        if iterations is not None and stack.concurrent:
            stack.iterations = iterations
        elif iterations is not None:
            for layer in layers:
                layer.set_iterations(iterations)
        yield
    finally:
        stack.iterations = before[0]
        for layer, own in zip(layers, before[1], strict=True):
            layer.set_iterations(own)


def layers_of(stack: CapsuleStack) -> list[CapsuleLayer]:
    return [cast(CapsuleLayer, layer) for layer in stack.layers]


def iterations_of(stack: CapsuleStack) -> int:
    """The number of routing iterations of the class layer."""
    return stack.iterations if stack.concurrent else layers_of(stack)[-1].routing.iterations


def keeps_couplings(algorithm: Routing) -> bool:
    """Whether couplings are state of the layer, one per child, so that there is nothing to iterate over."""
    return any(spec.state and spec.per_child for spec in algorithm.learned(Sizes(1, 1, 1)).values())


def trace(run: Run, batch: Batch, iterations: int | None = None) -> list[LayerTrace]:
    """Every capsule layer of the model, from the lowest. The last one's `out` is what the model's head reads."""
    stack = run.stack()
    u, activation = children(run, batch)
    with iterated(stack, iterations):
        return _concurrent(stack, u, activation) if stack.concurrent else _sequential(stack, u, activation)


def _sequential(stack: CapsuleStack, u: Tensor, activation: Tensor | None) -> list[LayerTrace]:
    found, layers = [], layers_of(stack)
    for k, layer in enumerate(layers):
        out = layer(u, activation, coupling=True, record=True)
        found.append(LayerTrace(layer, u, activation, out.history, out))
        if k + 1 < len(layers):
            u, activation = layers[k + 1].take(out)
    return found


def _concurrent(stack: CapsuleStack, u: Tensor, activation: Tensor | None) -> list[LayerTrace]:
    """Procedure 2: after one sweep all layers at once, each from the previous state of its neighbours."""
    layers = layers_of(stack)
    state = [Routed(u, activation)]
    for layer in layers:
        state.append(layer.step(state[-1], coupling=True))
    steps = [[_step(x)] for x in state[1:]]
    below = state
    for _ in range(stack.iterations - 1):
        below, state = state, [state[0], *(
            layer.step(state[k], state[k + 1].pose, coupling=True)
            for k, layer in enumerate(layers)
        )]
        for seen, x in zip(steps, state[1:], strict=True):
            seen.append(_step(x))
    return [LayerTrace(layer, below[k].pose, below[k].activation, tuple(steps[k]), state[k + 1])
            for k, layer in enumerate(layers)]


def _step(x: Routed) -> Step:
    assert x.coupling is not None
    return Step(x.coupling, x.pose)


def class_votes(run: Run, batch: Batch, iterations: int | None = None) -> tuple[Tensor, LayerTrace]:
    """Every vote for every class capsule, (B, I, J, D), and the trace of the class layer."""
    top = trace(run, batch, iterations)[-1]
    if not isinstance(top.layer, DenseCapsules):
        raise DoesNotApply("a dense class layer is needed; this one is convolutional")
    return top.layer.votes(top.u), top


def presence(top: LayerTrace) -> Tensor:
    """The activation of each child as a probability, (B, I) or (B, types, H, W); where the pose has it, its length."""
    if top.activation is not None:
        return top.activation.sigmoid() if top.layer.routing.input_activation == "score" else top.activation
    if top.layer.routing.output_activation == "length":
        return top.u.norm(dim=-1)
    return torch.ones_like(top.u[..., 0])


def receptive_fields(run: Run, batch: Batch) -> Tensor:
    """The pixels that primary capsules at each place see, (H, W, 4): first row, last row, first and last column.

    Computed from the gradient of one place's poses with respect to the image, so it works for any backbone.
    """
    image = run.images()[:1]
    u, _ = children(run, batch._replace(inputs=image))
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
