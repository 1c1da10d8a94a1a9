r"""An Algorithm for Routing Capsules in All Domains (Heinsen, 2019), https://arxiv.org/abs/1911.00792

    E-step   R_ij = f(a_j) P_ij / sum_j f(a_j) P_ij, 1 / J in the first iteration           Eq. 2
    D-step   D_use = f(a_i) R_ij,  D_ign = f(a_i) - D_use                                   Eq. 4, 6
    M-step   a_j = sum_i beta_use D_use - sum_i beta_ign D_ign                              Eq. 8
             mu_j, sigma^2_j: mean and variance of the votes weighted by D_use

f is the logistic function; scores a are logits on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import check_arguments, check_iterations, check_number, check_overflow
from .contract import Function, Learned, Routed, Routing, Sizes, Step, Tensors
from .math import Softmax, compute_dtype, full_precision, log_density, over_parents, weighted_moments


@full_precision
def heinsen_routing(
    votes: Tensor,
    score: Tensor,
    *,
    beta_use: Tensor,
    beta_ignore: Tensor,
    iterations: int = 3,
    eps: float = 1e-5,
    start: Tensor | None = None,
    record: bool = False,
    softmax: Softmax = over_parents,
) -> Routed:
    """Algorithm 1. votes (B, I, J, D), score (B, I) -> pose, activation = score (B, J), coupling R, variance.

    A child of score -inf is absent, one of +inf is present for certain. beta_use, beta_ignore (I, J) or (J,). start
    (I, J): logits of the first R, which is uniform by default. eps is added to the sum of D_use and to the variance.
    """
    b, i, j, _ = check_arguments(
        votes, score=(score, "BI"), beta_use=(beta_use, "IJ", "J"), beta_ignore=(beta_ignore, "IJ", "J"),
        start=(start, "IJ", None),
    )  # fmt: skip
    check_iterations(iterations)
    check_number("eps", eps, 0)
    votes, dtype = votes.to(compute_dtype(votes)), votes.dtype
    beta_use, beta_ignore = beta_use.to(votes.dtype), beta_ignore.to(votes.dtype)
    f = score.to(votes.dtype).sigmoid()[..., None]  # (B, I, 1)
    history: list[Step] = []
    r = softmax(votes.new_zeros(b, i, j) if start is None else start.to(votes.dtype).expand(b, i, j))
    for t in range(iterations):
        use = f * r  # Eq. 4
        ignore = f - use  # Eq. 6
        a = (beta_use * use).sum(1) - (beta_ignore * ignore).sum(1)  # Eq. 8   (B, J)
        _, mu, variance = weighted_moments(use, votes, eps)  # (B, J, D) each
        if record:
            history.append(Step(r, mu.to(dtype), a.to(dtype)))
        if t < iterations - 1:  # the E-step of the next iteration
            r = softmax(F.logsigmoid(a)[:, None] + log_density(votes, mu, variance))  # Eq. 2   (B, I, J)
    given = {"votes": votes, "score": f, "beta_use": beta_use, "beta_ignore": beta_ignore, "start": start}
    check_overflow((mu, variance, a, r), **given)
    return Routed(mu.to(dtype), a.to(dtype), r, variance, tuple(history) if record else None)


@dataclass(frozen=True)
class Heinsen(Routing):
    """tied: beta_ignore is beta_use. eps: see `heinsen_routing`. one_to_one: for a variable number of parents, R
    starts as the softmax of this number times the identity, which breaks the symmetry between parents."""

    title = "Heinsen's routing"
    function = staticmethod(heinsen_routing)
    input_activation = output_activation = "score"
    vote_bias = True

    eps: float = 1e-5
    tied: bool = False
    one_to_one: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eps", self.eps, 0)
        if self.one_to_one is not None:
            check_number("one_to_one", self.one_to_one)

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        per_child = () if sizes.children is None else (sizes.children,)
        beta = Learned((*per_child, sizes.parents), per_child=bool(per_child), parents=-1)
        return {"beta_use": beta} if self.tied else {"beta_use": beta, "beta_ignore": beta}

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        nn.init.normal_(weight, std=1 / weight.shape[1])  # N(0, 1) / d_inp

    def run(self, function: Function, votes: Any, activation: Tensor | None, learned: Tensors, **common: Any) -> Routed:
        _, i, j, _ = votes.size()
        use = learned["beta_use"]
        betas = {"beta_use": use, "beta_ignore": learned.get("beta_ignore", use)}
        start = None
        if self.one_to_one is not None:
            if i != j:
                raise ValueError(f"one_to_one: expected as many parents as children, got {j} and {i}")
            start = self.one_to_one * torch.eye(i, device=use.device, dtype=use.dtype)
        return function(votes, activation, iterations=self.iterations, eps=self.eps, start=start, **betas, **common)
