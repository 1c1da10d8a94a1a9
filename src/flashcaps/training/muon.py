"""Muon (Jordan et al. 2024): steps along the orthogonalised momentum of each matrix.

    m = mu m + (1 - mu) g,   x = (1 - mu) g + mu m,   p = (1 - lr decay) p - lr 0.2 sqrt(max(rows, columns)) U V^T

for x = U S V^T, so that a step moves each entry about as far as one of AdamW (Liu et al. 2025), which updates the
parameters that are no matrices. A weight of more axes is a matrix of its first axis, the outputs, by all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

QUINTIC = (3.4445, -4.7750, 2.0315)  # steep at 0; singular values end between about 0.7 and 1.2
STEPS = 5
EPS = 1e-7


def unless_found(found: Tensor | None, new: Iterable[Tensor], old: Iterable[Tensor]) -> list[Tensor]:
    """`new`, or `old` where NaN or Inf was found in this step: an average that moves towards it then stays."""
    if found is None:
        return list(new)
    return [torch.where(found > 0, b, a) for a, b in zip(new, old, strict=True)]


def orthogonalise(x: Tensor) -> Tensor:
    """About U V^T of each x (n, rows, columns) = U S V^T, by Newton-Schulz steps in bf16."""
    wide = x.shape[1] <= x.shape[2]
    y = (x if wide else x.mT).bfloat16()
    y = y / y.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y if wide else y.mT


def matrix(x: Tensor, like: Tensor) -> Tensor:
    """x as (outputs, all others), the others in the order that `like` has in memory: of a weight, always a view."""
    if like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last):
        x = x.permute(0, 2, 3, 1)
    return x.flatten(1)


class Muon(torch.optim.Optimizer):
    """Muon for weights of two axes and more, AdamW (betas, eps) for the rest; lr may be a tensor.

    Matrices of one shape are stacked, so that a step takes few launches; the state of the first holds all momenta.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        params = list(params)
        kinds = {True: [p for p in params if p.ndim > 1], False: [p for p in params if p.ndim < 2]}
        groups = [{"params": found, "matrices": kind} for kind, found in kinds.items() if found]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "decay": weight_decay})

    found_inf: Tensor | None = None  # as in torch's fused optimisers: where it is 1, a step changes nothing

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                (self._matrices if group["matrices"] else self._rest)(group, params)

    def _matrices(self, group: dict[str, Any], params: list[Tensor]) -> None:
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=params[0].device)
        if self.found_inf is not None:
            lr = torch.where(self.found_inf > 0, 0.0, lr)
        alike: dict[tuple[int, int], list[Tensor]] = {}
        for p in params:
            alike.setdefault((p.shape[0], p.numel() // p.shape[0]), []).append(p)
        weights = [matrix(p, p) for ps in alike.values() for p in ps]
        steps = [s for shape, ps in alike.items() for s in self._steps(shape, ps, group["momentum"], lr).unbind()]
        if group["decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["decay"])
        torch._foreach_add_(weights, steps)

    def _steps(self, shape: tuple[int, int], params: list[Tensor], mu: float, lr: Tensor) -> Tensor:
        """Steps (n, rows, columns) of n weights of one shape."""
        g = torch.stack([matrix(p.grad, p) for p in params if p.grad is not None])
        state = self.state[params[0]]
        if not state:
            state["m"] = torch.zeros_like(g)
        m = state["m"]
        (g,) = unless_found(self.found_inf, [g], [m])
        m.lerp_(g, 1 - mu)
        return orthogonalise(torch.lerp(g, m, mu)).float() * (-0.2 * max(shape) ** 0.5 * lr)

    def _rest(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p),
                                 "t": torch.zeros((), device=p.device)}  # fmt: skip
        m, v, t = ([self.state[p][k] for p in params] for k in "mvt")
        (b1, b2), grads = group["betas"], [p.grad for p in params if p.grad is not None]
        adamw(
            params, grads, m, v, [], t, fused=True, found_inf=self.found_inf, amsgrad=False, beta1=b1, beta2=b2,
            lr=group["lr"], weight_decay=group["decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip
