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
    poses of itself and of the layer below, `iterations` in all (Procedure 2; attention only). Otherwise
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
        *below, top = self.capsule_layers()
        for layer in below:
            u, activation = layer(u, activation), None
        return top(u, activation, coupling=coupling, record=record)

    if TYPE_CHECKING:
        __call__ = forward

    def capsule_layers(self) -> list[CapsuleLayer]:
        return [cast(CapsuleLayer, layer) for layer in self.layers]

    def sweeps(self, primary: Routed, coupling: bool, every: bool = False) -> list[list[Routed]]:
        """Procedure 2: for each iteration, the primary capsules and what every layer computed from the lowest up.

        A change takes one iteration to climb one layer. What cannot reach the top in time is computed only with
        `every`, and only then do layers below the top compute their coupling.
        """
        layers, last = self.capsule_layers(), len(self.layers) - 1
        asked = [coupling and (every or k == last) for k in range(last + 1)]
        state = [primary]  # state[k + 1] is what layer k computes
        for layer, c in zip(layers, asked, strict=True):
            state.append(layer.step(state[-1], coupling=c))
        found = [state]
        for t in range(2, self.iterations + 1):
            before, state = state, list(state)
            for k, layer in enumerate(layers):
                if every or t + (last - k) <= self.iterations:
                    state[k + 1] = layer.step(before[k], before[k + 1].pose, coupling=asked[k])
            found.append(state)
        return found

    def _concurrent(self, u: Tensor | Routed, activation: Tensor | None, coupling: bool, record: bool) -> Routed:
        primary = u if isinstance(u, Routed) else Routed(u, activation)
        tops = [state[-1] for state in self.sweeps(primary, coupling or record)]
        pose, a, c, variance, _, kind = tops[-1]
        return Routed(pose, a, c if coupling else None, variance, tuple(map(as_step, tops)) if record else None, kind)


def as_step(routed: Routed) -> Step:
    """One iteration of a layer as an entry of a history."""
    assert routed.coupling is not None
    return Step(routed.coupling, routed.pose, routed.activation)
