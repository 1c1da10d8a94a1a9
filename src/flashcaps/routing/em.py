r"""Matrix Capsules with EM Routing (Hinton, Sabour, Frosst, 2018), as in the slides' Procedure 1.

    M-step   r'_ij = r_ij a_i
             mu_jh = sum_i r'_ij V_ijh / sum_i r'_ij        sigma^2_jh likewise
             cost_jh = (beta_u + log sigma_jh) sum_i r'_ij
             a_j = sigmoid(lambda (beta_a - sum_h cost_jh))
    E-step   r_ij = a_j p_ij / sum_k a_k p_ik               p_ij = N(V_ij; mu_j, sigma^2_j)

Two options of `EM` scale these sums so that they suit layers of any size. With n_j = sum_i r'_ij, n_0 the n_j of
children that divide themselves evenly among parents, and tau the sharpness:

    relative    a_j = sigmoid(lambda (beta_a - n_j / n_0 mean_h(beta_u + log sigma_jh)))
    sharpness   r_ij = a_j p_ij^tau / sum_k a_k p_ik^tau
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import (
    check_arguments,
    check_devices,
    check_iterations,
    check_number,
    check_overflow,
    check_per_iteration,
    check_probability,
    check_tensor,
)
from .contract import Function, Learned, Routed, Routing, Sizes, Step, Tensors
from .math import (
    OverPositions,
    Softmax,
    compute_dtype,
    full_precision,
    log_density,
    masked,
    over_parents,
    weighted_moments,
)


def inverse_temperature(iterations: int) -> tuple[float, ...]:
    """lambda_t = 0.01 (1 - 0.95^(t+1)), t = 0, 1, ..."""
    check_iterations(iterations)
    return tuple(0.01 * (1 - 0.95 ** (t + 1)) for t in range(iterations))


def rising_sharpness(iterations: int, dim: int) -> tuple[float, ...]:
    """tau_t = (t + 1) / ((T - 1) D): the mean evidence of the D elements, which counts in full at the last E-step."""
    return tuple((t + 1) / (max(iterations - 1, 1) * dim) for t in range(iterations))


def even_share(shape: Sequence[int], softmax: Softmax) -> float:
    """n_0 = sum_i r_ij of a parent, where children divide themselves evenly. shape: (B, I, J, D) of the votes."""
    _, i, j, _ = shape
    if not isinstance(softmax, OverPositions):
        return i / j
    places, kernel = softmax.child.shape
    return i / kernel * softmax.places / (places * j)


def activation_logit(total: Tensor, variance: Tensor, beta_u: Tensor, beta_a: Tensor, inverse: float) -> Tensor:
    """lambda (beta_a - sum_h cost_jh), with total = sum_i r'_ij (B, J) and variance (B, J, D) -> (B, J)."""
    beta_u = beta_u if beta_u.ndim == 2 else beta_u[:, None]
    cost = (beta_u + 0.5 * variance.log()) * total[..., None]  # log sigma, not log sigma^2
    return inverse * (beta_a - cost.sum(-1))


@full_precision
def em_routing(
    votes: Tensor,
    activation: Tensor,
    *,
    beta_u: Tensor,
    beta_a: Tensor,
    inverse_temperature: float | Sequence[float],
    iterations: int = 3,
    eps: float = 1e-8,
    sharpness: float | Sequence[float] = 1.0,
    logits: bool = False,
    mask: Tensor | None = None,
    record: bool = False,
    softmax: Softmax = over_parents,
) -> Routed:
    """Procedure 1. votes (B, I, J, D), activation (B, I) -> pose, activation (B, J), coupling, variance.

    beta_u (J,) or (J, D), beta_a (J,). mask (I, J): true where a child can vote for a parent. eps is added to
    sum_i r' where it divides, and to the variance. sharpness (tau) multiplies the log density of the E-step.
    logits: the activation is left before the sigmoid. coupling is the r of the last M-step.
    """
    b, i, j, _ = check_arguments(
        votes, activation=(activation, "BI"), beta_u=(beta_u, "J", "JD"), beta_a=(beta_a, "J")
    )
    check_probability("activation", activation)
    check_iterations(iterations)
    check_number("eps", eps, 0)
    schedule = check_per_iteration("inverse_temperature", inverse_temperature, iterations)
    taus = check_per_iteration("sharpness", sharpness, iterations)
    if mask is not None:
        check_tensor("mask", mask)
        check_devices(votes, mask=mask)
        if tuple(mask.shape) != (i, j):
            raise ValueError(f"mask: expected {(i, j)} (child, parent), got {tuple(mask.shape)}")
        softmax = masked(softmax, mask.bool())
    votes, dtype = votes.to(compute_dtype(votes)), votes.dtype
    activation, beta_u, beta_a = (x.to(votes.dtype) for x in (activation, beta_u, beta_a))
    history: list[Step] = []
    r = softmax(votes.new_zeros(b, i, j))  # 1 / number of parents a child can vote for
    for t, inverse in enumerate(schedule):
        total, mu, variance = weighted_moments(r * activation[..., None], votes, eps)  # M-step   (B, J, D)
        logit = activation_logit(total, variance, beta_u, beta_a, inverse)  # (B, J)
        if record:
            history.append(Step(r, mu.to(dtype), (logit if logits else logit.sigmoid()).to(dtype)))
        if t < iterations - 1:  # E-step   (B, I, J)
            r = softmax(F.logsigmoid(logit)[:, None] + taus[t] * log_density(votes, mu, variance))
    check_overflow((mu, variance, logit, r), votes=votes, activation=activation, beta_u=beta_u, beta_a=beta_a)
    a = logit if logits else logit.sigmoid()
    return Routed(mu.to(dtype), a.to(dtype), r, variance, tuple(history) if record else None)


@dataclass(frozen=True)
class EM(Routing):
    """inverse_temperature (lambda): None is 0.01 (1 - 0.95^(t+1)), or 1 where `relative`. eps: see `em_routing`.

    relative: the cost by share and pose element, as above. One lambda near 1 then suits layers of 2 and of 50 effective
    children, and beta_a learns as fast as other weights. sharpness (tau): None is 1, or `rising_sharpness` where
    `relative`: a log density sums over the D elements of a pose, which makes assignments hard before votes mean
    anything, and harder with every iteration. norm_activation: batch normalisation of the last logit, which gives every
    type its own lambda and beta_a. beta_u, beta_a: their initial values.
    """

    title = "EM routing"
    function = staticmethod(em_routing)
    input_activation = output_activation = "probability"
    loss = "spread"
    over = "positions"

    inverse_temperature: float | tuple[float, ...] | None = None
    eps: float = 1e-8
    relative: bool = False
    sharpness: float | tuple[float, ...] | None = None
    norm_activation: bool = False
    beta_u: float = 0.0
    beta_a: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eps", self.eps, 0)
        check_number("beta_u", self.beta_u)
        check_number("beta_a", self.beta_a)
        for name in ("inverse_temperature", "sharpness"):
            value = getattr(self, name)
            if value is not None:
                check_per_iteration(name, value, self.iterations)

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        start = {"beta_u": self.beta_u, "beta_a": self.beta_a}
        return {name: Learned((sizes.parents,), start=float(x), parents=0) for name, x in start.items()}

    def output_norm(self, sizes: Sizes) -> nn.Module | None:
        return nn.Sequential(nn.BatchNorm1d(sizes.parents), nn.Sigmoid()) if self.norm_activation else None

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        """Near the identity: a vote is nearly the child's own pose, and poses keep their size from layer to layer.

        The mean of n votes in random directions is smaller by sqrt(n) in every layer. Variances are then small, costs
        far below 0, and the activations of all classes near 1, where they have hardly a gradient.
        """
        _, d, _, h = weight.shape
        if d == h:
            nn.init.normal_(weight, std=0.2 * d**-0.5)
            with torch.no_grad():
                for k in range(d):  # in PyTorch 2.9, the diagonal of a sharded weight is a copy
                    weight.select(1, k).select(2, k).add_(1)
        else:
            super().init_weights(weight, sizes)

    def run(self, function: Function, votes: Any, activation: Tensor | None, learned: Tensors, **common: Any) -> Routed:
        schedule, tau, shape = self.inverse_temperature, self.sharpness, votes.size()
        if schedule is None:
            schedule = 1.0 if self.relative else inverse_temperature(self.iterations)
        if tau is None:
            tau = rising_sharpness(self.iterations, shape[3]) if self.relative else 1.0
        if self.relative:  # lambda (beta_a - cost / (n_0 D)) = lambda / (n_0 D) (n_0 D beta_a - cost)
            whole = even_share(shape, common.get("softmax", over_parents)) * shape[3]
            schedule = tuple(x / whole for x in check_per_iteration("inverse_temperature", schedule, self.iterations))
            learned = {**learned, "beta_a": whole * learned["beta_a"]}
        return function(
            votes,
            activation,
            iterations=self.iterations,
            inverse_temperature=schedule,
            eps=self.eps,
            sharpness=tau,
            logits=self.norm_activation,
            **learned,
            **common,
        )
