"""Stacks of capsule layers: layer by layer, or all at once (attention, Procedure 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from ..routing import Routed, Step
from ..routing.checks import check_iterations
from .capsules import CapsuleLayer


class CapsuleStack(nn.Module):
    """Capsule layers one above the other.

    concurrent: after one sequential sweep with uniform coefficients, every layer updates at once from the previous
    values of its neighbours, `iterations` in all, primary capsules fixed (Procedure 2; attention only). Otherwise
    each layer finishes its routing before the next begins. None: concurrent where every layer can be. `iterations`
    None: the layers' own (the most of them).

    u and activation of the primary capsules, (B, types, H, W, D) or (B, I, D), or a Routed -> Routed of the last layer.
    """

    def __init__(
        self, layers: Iterable[CapsuleLayer], iterations: int | None = None, concurrent: bool | None = None
    ) -> None:
        super().__init__()
        stack = list(layers)
        if not stack:
            raise ValueError("layers: expected at least one capsule layer, got none")
        if iterations is not None:
            check_iterations(iterations)
        sequential = [k for k, layer in enumerate(stack) if not layer.routing.stepwise]
        if concurrent is None:
            concurrent = not sequential
        if concurrent and sequential:
            k = sequential[0]
            raise ValueError(f"concurrent: layer {k} ({stack[k].name}) has no single step; use concurrent=False")
        if not concurrent and iterations is not None:
            for layer in stack:
                if layer.routing.iterations != iterations:
                    layer.set_iterations(iterations)
        for layer in stack[:-1]:
            layer.hidden = True
        self.layers = nn.ModuleList(stack)
        self.iterations = iterations or max(layer.routing.iterations for layer in stack)
        self.concurrent = concurrent

    def forward(
        self, u: Tensor | Routed, activation: Tensor | None = None, *, coupling: bool = False, record: bool = False
    ) -> Routed:
        if self.concurrent:
            return self._concurrent(u, activation, coupling, record)
        *below, top = self._layers()
        for layer in below:
            u, activation = layer(u, activation), None
        return top(u, activation, coupling=coupling, record=record)

    if TYPE_CHECKING:
        __call__ = forward

    def _layers(self) -> list[CapsuleLayer]:
        return [cast(CapsuleLayer, layer) for layer in self.layers]

    def _concurrent(self, u: Tensor | Routed, activation: Tensor | None, coupling: bool, record: bool) -> Routed:
        layers, last = self._layers(), len(self.layers) - 1
        asked = [k == last and (coupling or record) for k in range(last + 1)]
        state = [u if isinstance(u, Routed) else Routed(u, activation)]  # state[k + 1] is what layer k computes
        for layer, c in zip(layers, asked, strict=True):
            state.append(layer.step(state[-1], coupling=c))
        tops = [state[-1]]
        for t in range(2, self.iterations + 1):
            new = list(state)
            for k, layer in enumerate(layers):
                # A change takes one iteration to climb one layer: what cannot reach the top in time is not computed.
                if t + (last - k) <= self.iterations:
                    new[k + 1] = layer.step(state[k], state[k + 1].pose, coupling=asked[k])
            state = new
            tops.append(state[-1])
        top = state[-1]
        steps = tuple(Step(x.coupling, x.pose, x.activation) for x in tops if x.coupling is not None)
        shown, history = top.coupling if coupling else None, steps if record else None
        return Routed(top.pose, top.activation, shown, top.variance, history, top.kind)

