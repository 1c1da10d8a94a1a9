"""Optimisers whose rates live on the device, and schedules as pure functions of the step.

A captured step is replayed on what its tensors hold then, so the learning rate (and RAdam's first beta) are tensors on
the device, filled before each replay. Like torch's fused optimisers, RAdam and Muon read `found_inf`; where it is 1, a
step changes nothing.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from .recipe import Optimiser, Schedule

QUINTIC = (3.4445, -4.7750, 2.0315)  # steep at 0; singular values end between about 0.7 and 1.2
STEPS = 5
EPS = 1e-7


class Rates(NamedTuple):
    lr: float
    momentum: float | None = None


def scheduled(spec: Schedule, lr: float, step: int, total: int, per_epoch: int) -> Rates:
    """The rates of `step`, counted from 0, of `total` steps in the run and `per_epoch` in an epoch."""
    if spec.kind == "exponential":
        times = step / spec.every if spec.smooth else step // spec.every
        return Rates(max(lr * spec.factor**times, spec.floor))
    if spec.kind == "steps":
        return Rates(lr * spec.factor ** sum(step >= m * per_epoch for m in spec.milestones))
    warm = spec.warmup * total
    if spec.kind == "one_cycle":  # p: 0 -> 1 over the warm-up, then back to 0 at the last step
        last = max(total - 1, 1)
        p = step / warm if step < warm else _cosine((step - warm) / max(last - warm, 1))
        momentum = spec.momentum[0] + p * (spec.momentum[1] - spec.momentum[0]) if spec.momentum else None
        return Rates(spec.start_lr + p * (lr - spec.start_lr), momentum)
    if spec.kind == "cosine" and step < warm:
        return Rates(spec.start_lr + (lr - spec.start_lr) * (step + 1) / math.ceil(warm))
    if spec.kind == "cosine":
        return Rates(lr * _cosine((step - warm) / max(total - warm, 1)))
    return Rates(lr)


def _cosine(t: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(max(t, 0.0), 1.0)))


def unless_found(found: Tensor | None, new: Iterable[Tensor], old: Iterable[Tensor]) -> list[Tensor]:
    """`new`, or `old` if this step found NaN or Inf, so that an average that moves towards it stays."""
    if found is None:
        return list(new)
    return [torch.where(found > 0, b, a) for a, b in zip(new, old, strict=True)]


def moments(state: dict[Any, Any], params: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """First and second moments of the parameters and their numbers of steps, 0 before the first step."""
    for p in params:
        if not state[p]:
            state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p), "t": torch.zeros((), device=p.device)}
    m, v, t = ([state[p][k] for p in params] for k in "mvt")
    return m, v, t


class GuardedOptimizer(torch.optim.Optimizer):
    """Updates the parameters that have gradients, group by group; where `found_inf` is 1, an update changes nothing."""

    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params)

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        raise NotImplementedError


class RAdam(GuardedOptimizer):
    """Rectified Adam (Liu et al. 2019) with lr and the first beta as tensors, so that both can be scheduled.

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2;  p -= lr m / (1 - b1^t) * r_t sqrt(1 - b2^t) / (sqrt(v) + eps)
    while rho_t > 5, and p -= lr m / (1 - b1^t) before that.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        m, v, t = moments(self.state, params)
        device = params[0].device
        lr, b1 = (torch.as_tensor(group[k], dtype=torch.float32, device=device) for k in ("lr", "beta1"))
        b2, decay = group["beta2"], group["weight_decay"]
        if decay:
            grads = list(torch._foreach_add(grads, params, alpha=decay))
        squares = list(torch._foreach_mul(grads, grads))
        grads, squares = unless_found(self.found_inf, grads, m), unless_found(self.found_inf, squares, v)
        if self.found_inf is None:
            torch._foreach_add_(t, 1)
        else:
            torch._foreach_add_(t, [1 - self.found_inf] * len(t))
        torch._foreach_add_(m, list(torch._foreach_mul(torch._foreach_sub(grads, m), 1 - b1)))
        torch._foreach_lerp_(v, squares, 1 - b2)
        rates = [*_rectified(t[0], lr, b1, b2)]
        momentum_rate, adaptive = unless_found(self.found_inf, rates, [torch.zeros_like(x) for x in rates])
        scale = torch._foreach_sqrt(v)
        torch._foreach_add_(scale, group["eps"])
        torch._foreach_reciprocal_(scale)
        torch._foreach_mul_(scale, adaptive)
        torch._foreach_add_(scale, [momentum_rate] * len(scale))  # a list, as the host would read a single tensor
        torch._foreach_addcmul_(params, m, scale, -1.0)


def _rectified(t: Tensor, lr: Tensor, b1: Tensor, b2: float) -> tuple[Tensor, Tensor]:
    """(rate of the plain momentum step, rate of the adaptive step); one of them is 0."""
    limit = 2 / (1 - b2) - 1
    power = torch.pow(b2, t.double())
    rho = limit - 2 * t * power / (1 - power)
    inside = ((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)).clamp(min=0)
    rate = lr / (1 - b1.double() ** t)
    warm = rho > 5
    plain, adaptive = torch.where(warm, 0.0, rate), torch.where(warm, rate * inside.sqrt() * (1 - power).sqrt(), 0.0)
    return plain.float(), adaptive.float()


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


def outputs_first(x: Tensor, like: Tensor, transforms: bool) -> Tensor:
    """A view of x, the weight `like` or its gradient, with the axes of outputs before those of inputs, which keep their
    order in memory. transforms: (J, d, G, h) -> (J, h, d, G)."""
    if transforms:
        return x.permute(0, 3, 1, 2)
    channels_last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return x.permute(0, 2, 3, 1) if channels_last else x


class Muon(GuardedOptimizer):
    """Muon (Jordan et al. 2024): steps along the orthogonalised momentum of each matrix; lr may be a tensor.

    m = mu m + (1 - mu) g,   x = (1 - mu) g + mu m,   p = (1 - lr decay) p - lr 0.2 sqrt(max(rows, columns)) U V^T

    for x = U S V^T, so that a step moves each entry about as far as a step of AdamW (Liu et al. 2025), which updates
    parameters that are no matrices. A weight with more axes is a matrix of its first axis, the outputs, by all others;
    `transforms`, weights (J, d, G, h) of capsule layers, are the matrices (J h) x (d G) of their map. Matrices of one
    shape are stacked, so that a step takes few launches; the state of the first holds all momenta.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float | Tensor = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        transforms: Iterable[nn.Parameter] = (),
    ) -> None:
        kinds: dict[str, list[nn.Parameter]] = {"matrices": [], "vectors": [], "transforms": []}
        maps = set(transforms)
        for p in params:
            kinds["transforms" if p in maps else "matrices" if p.ndim > 1 else "vectors"].append(p)
        groups = [{"params": found, "kind": kind} for kind, found in kinds.items() if found]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "decay": weight_decay})

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        (self._vectors if group["kind"] == "vectors" else self._matrices)(group, params)

    def _vectors(self, group: dict[str, Any], params: list[Tensor]) -> None:
        m, v, t = moments(self.state, params)
        (b1, b2), grads = group["betas"], [p.grad for p in params if p.grad is not None]
        adamw(
            params, grads, m, v, [], t, fused=True, found_inf=self.found_inf, amsgrad=False, beta1=b1, beta2=b2,
            lr=group["lr"], weight_decay=group["decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip

    def _matrices(self, group: dict[str, Any], params: list[Tensor]) -> None:
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=params[0].device)
        if self.found_inf is not None:
            lr = torch.where(self.found_inf > 0, 0.0, lr)
        transforms = group["kind"] == "transforms"
        alike: dict[tuple[int, int], list[Tensor]] = {}
        for p in params:
            rows = p.shape[0] * p.shape[3] if transforms else p.shape[0]
            alike.setdefault((rows, p.numel() // rows), []).append(p)
        weights, steps, mu = [], [], group["momentum"]
        for shape, ps in alike.items():
            views = [outputs_first(p, p, transforms) for p in ps]
            g = torch.stack([outputs_first(p.grad, p, transforms).reshape(shape) for p in ps if p.grad is not None])
            state = self.state[ps[0]]
            if not state:
                state["m"] = torch.zeros_like(g)
            m = state["m"]
            (g,) = unless_found(self.found_inf, [g], [m])
            m.lerp_(g, 1 - mu)
            moves = orthogonalise(torch.lerp(g, m, mu)).float() * (-0.2 * max(shape) ** 0.5 * lr)
            weights += views
            steps += [move.view(view.shape) for move, view in zip(moves, views, strict=True)]
        if group["decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["decay"])
        torch._foreach_add_(weights, steps)


def make_optimiser(
    params: Iterable[nn.Parameter], spec: Optimiser, device: torch.device, transforms: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """The recipe's optimiser, fused where torch has it. On CUDA its learning rate is a tensor, so it can be captured.

    transforms: the weights of capsule layers, for `optimiser.transforms`.
    """
    params = [p for p in params if p.requires_grad]
    cuda = device.type == "cuda"
    lr: Any = torch.tensor(spec.lr, device=device) if cuda else spec.lr
    if spec.kind == "radam":
        beta1: Any = torch.tensor(spec.betas[0], device=device) if cuda else spec.betas[0]
        return RAdam(params, lr, (beta1, spec.betas[1]), spec.eps, spec.weight_decay)
    if spec.kind == "muon":
        maps = transforms if spec.transforms else ()
        return Muon(params, lr, spec.momentum, spec.betas, spec.eps, spec.weight_decay, maps)
    if spec.kind == "sgd":
        return torch.optim.SGD(params, lr, momentum=spec.momentum, weight_decay=spec.weight_decay,
                               nesterov=spec.nesterov, fused=True)
    kind = torch.optim.AdamW if spec.kind == "adamw" else torch.optim.Adam
    return kind(params, lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay, fused=True, capturable=cuda)


def set_rates(optimiser: torch.optim.Optimizer, rates: Rates, device: torch.device) -> None:
    """Writes the rates of a step into the optimiser, to its tensors on CUDA and as plain numbers on the CPU."""
    for group in optimiser.param_groups:
        keys = {"lr": rates.lr} | ({} if rates.momentum is None else {"beta1": rates.momentum})
        for key, value in keys.items():
            if device.type != "cuda":
                group[key] = value
            elif isinstance(group[key], Tensor) and group[key].device.type == "cuda":
                group[key].fill_(value)
            else:
                group[key] = torch.tensor(value, device=device)
