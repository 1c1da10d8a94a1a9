"""Inside a stack of capsule layers: the input of every layer, its coupling and parents after every iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.votes import covered
from ..routing import Routed, Routing, Sizes, Step
from ..routing.math import length
from .capsules import CapsuleLayer, ConvCapsules
from .stack import CapsuleStack, as_step


@dataclass(frozen=True)
class LayerTrace:
    """One capsule layer: its input, and its coupling and parents after every iteration."""

    layer: CapsuleLayer
    u: Tensor  # (B, I, D) or (B, types, H, W, D)
    activation: Tensor | None
    steps: tuple[Step, ...]
    out: Routed


def children(stack: CapsuleStack, call: Callable[[], Any]) -> tuple[Tensor, Tensor | None]:
    """The poses and activations that the stack gets while `call`, a forward pass of its network, runs."""
    inputs: list[Any] = []
    hook = stack.register_forward_pre_hook(lambda module, given: inputs.extend((*given, None)))
    try:
        call()
    finally:
        hook.remove()
    return inputs[0], inputs[1]


def trace_layers(stack: CapsuleStack, u: Tensor, activation: Tensor | None) -> list[LayerTrace]:
    """Every layer of the stack, from the lowest. The last one's `out` is what the network's head reads."""
    found, layers = [], stack.capsule_layers()
    if stack.concurrent:
        states = stack.sweeps(Routed(u, activation), coupling=True, every=True)
        below = states[max(len(states) - 2, 0)]  # a layer's last input is one iteration old, unless there is only one
        for k, layer in enumerate(layers):
            steps = tuple(as_step(state[k + 1]) for state in states)
            found.append(LayerTrace(layer, below[k].pose, below[k].activation, steps, states[-1][k + 1]))
        return found
    for k, layer in enumerate(layers):
        out = layer(u, activation, coupling=True, record=True)
        found.append(LayerTrace(layer, u, activation, out.history or (), out))
        if k + 1 < len(layers):
            u, activation = layers[k + 1].take(out)
    return found


@contextmanager
def iterated(stack: CapsuleStack, iterations: int | None) -> Iterator[None]:
    """Use another number of routing iterations within the context; None keeps the stack's own."""
    layers = stack.capsule_layers()
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


def iterations_of(stack: CapsuleStack) -> int:
    """The number of routing iterations of the class layer."""
    return stack.iterations if stack.concurrent else stack.capsule_layers()[-1].routing.iterations


def keeps_couplings(algorithm: Routing) -> bool:
    """Whether couplings are state of the layer, one per child, so that there is nothing to iterate over."""
    return any(spec.state and spec.per_child for spec in algorithm.learned(Sizes(1, 1, 1)).values())


def presence(trace: LayerTrace) -> Tensor:
    """The activation of each child as a probability, (B, I) or (B, types, H, W); a length is read from the pose."""
    if trace.activation is not None:
        scores = trace.layer.routing.input_activation == "score"
        return trace.activation.sigmoid() if scores else trace.activation
    if trace.layer.routing.output_activation == "length":
        return length(trace.u)
    return torch.ones_like(trace.u[..., 0])


def decided(total: Tensor, top: Tensor, entropy: Tensor, parents: int | Tensor) -> tuple[Tensor, Tensor]:
    """max p J and sum -p ln p / ln J of a child's shares p = |c| / total, from sums over its J parents.

    total is sum |c|, top max |c|, entropy sum -|c| ln |c|. The first is 1 where all parents have the same share and J
    where one has all of it, the second 1 and 0; a child of a single parent has no choice.
    """
    j = torch.as_tensor(parents, dtype=total.dtype, device=total.device)
    total = total.clamp(min=torch.finfo(total.dtype).tiny)
    return top / total * j, (entropy / total + total.log()) / j.clamp(min=2).log()


def sums(coupling: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `decided` takes, of couplings (..., J); signed ones by their size."""
    c = coupling.abs()
    return c.sum(-1), c.amax(-1), torch.special.entr(c).sum(-1)


def decisions(trace: LayerTrace, coupling: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How every child decided: its largest share and entropy, as in `decided`, and its presence, (B, N) each.

    In a convolutional layer a child decides once in every window, among its J types. If it competes over positions, it
    decides once for all its windows, and J is types times windows. Padding has presence 0.
    """
    layer, there = trace.layer, presence(trace).to(coupling.dtype)
    if not isinstance(layer, ConvCapsules):
        return *decided(*sums(coupling), coupling.shape[-1]), there.flatten(1)
    there = F.pad(there, [layer.padding] * 4)
    b, types, h, w = there.shape
    cell = covered(h, w, layer.kernel, layer.stride, coupling.device).flatten()  # (P K): the child of every vote
    votes = coupling.unflatten(1, (types, -1)).permute(0, 1, 4, 5, 2, 3).flatten(2, 4)  # (B, types, P K, J)
    (total, top, entropy), parents, there = sums(votes), votes.shape[-1], there.flatten(2)
    if layer.over == "types":
        largest, undecided = decided(total, top, entropy, parents)
        return largest.flatten(1), undecided.flatten(1), there[..., cell].flatten(1)
    windows = torch.bincount(cell, minlength=h * w)
    index, zero = cell.expand(b, types, -1), torch.zeros_like(there)
    total, entropy = (zero.scatter_add(2, index, x) for x in (total, entropy))
    top = zero.scatter_reduce(2, index, top, "amax")
    largest, undecided = decided(total, top, entropy, parents * windows)
    return largest.flatten(1), undecided.flatten(1), (there * (windows > 0)).flatten(1)
