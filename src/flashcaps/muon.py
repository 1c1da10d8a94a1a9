"""Muon (Jordan et al. 2024): steps along the orthogonalised momentum of each matrix.

    m = mu m + (1 - mu) g,   x = (1 - mu) g + mu m,   p = (1 - lr decay) p - lr 0.2 sqrt(max(rows, columns)) U V^T

for x = U S V^T, so that a step moves each entry about as far as one of AdamW (Liu et al. 2025), which takes what is no
matrix. A weight of more axes is a matrix of its first axis, the outputs, and all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)  # steep at 0; singular values end between about 0.7 and 1.2
STEPS = 5
EPS = 1e-7


def unless_found(found: Tensor | None, new: Iterable[Tensor], old: Iterable[Tensor]) -> list[Tensor]:
    """What takes the place of `old`: itself, where something not finite was found. So a mean moved there stays."""
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


class Muon(torch.optim.Optimizer):
    """Muon for weights of two axes and more, AdamW (betas, eps) for the rest; lr may be a tensor."""

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

    found_inf: Tensor | None = None  # as torch's fused optimisers have it: where it is 1, a step changes nothing

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=params[0].device)
            if self.found_inf is not None:
                lr = torch.where(self.found_inf > 0, 0.0, lr)
            if group["decay"]:
                torch._foreach_mul_(params, 1 - lr * group["decay"])
            (self._matrices if group["matrices"] else self._rest)(group, params, lr)

    def _matrices(self, group: dict[str, Any], params: list[Tensor], lr: Tensor) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {"m": torch.zeros_like(p)}
        m, mu = [self.state[p]["m"] for p in params], group["momentum"]
        grads = unless_found(self.found_inf, [p.grad for p in params if p.grad is not None], m)
        torch._foreach_lerp_(m, grads, 1 - mu)
        ahead = torch._foreach_lerp(grads, m, mu)
        alike: dict[tuple[int, int], list[int]] = {}  # of one shape: one product for all of them
        for k, x in enumerate(ahead):
            alike.setdefault((x.shape[0], x.numel() // x.shape[0]), []).append(k)
        for (rows, columns), ks in alike.items():
            x = orthogonalise(torch.stack([ahead[k].reshape(rows, columns) for k in ks]))
            steps = x * (-0.2 * max(rows, columns) ** 0.5 * lr)
            for k, s in zip(ks, steps, strict=True):
                params[k].add_(s.view(params[k].shape))

    def _rest(self, group: dict[str, Any], params: list[Tensor], lr: Tensor) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p),
                                 "t": torch.zeros((), device=p.device)}  # fmt: skip
        m, v = ([self.state[p][k] for p in params] for k in "mv")
        t = [self.state[p]["t"] for p in params]
        b1, b2 = group["betas"]
        grads = [p.grad for p in params if p.grad is not None]
        squares = unless_found(self.found_inf, torch._foreach_mul(grads, grads), v)
        one = torch.ones_like(t[0]) if self.found_inf is None else 1 - self.found_inf
        torch._foreach_add_(t, [one] * len(t))
        torch._foreach_lerp_(m, unless_found(self.found_inf, grads, m), 1 - b1)
        torch._foreach_lerp_(v, squares, 1 - b2)
        scale = torch._foreach_mul(v, (1 / (1 - b2 ** t[0].double())).float())  # in float32, b2^t stays 1 for long
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, group["eps"])
        steps = torch._foreach_div(m, scale)
        torch._foreach_mul_(steps, (-lr / (1 - b1 ** t[0].double())).float())
        torch._foreach_add_(params, steps)
