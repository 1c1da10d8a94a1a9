"""EM routing without votes: one pass over blocks of children per iteration, E-step and M-step together."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ..routing._checks import check_iterations
from ..routing._math import Softmax, over_parents
from ..routing._types import Routed, Step
from ..routing.em import temperatures
from ..votes import Votes
from ._steps import fit_step


def em_routing(
    votes: Votes,
    activation: Tensor,
    *,
    beta_u: Tensor,
    beta_a: Tensor,
    inverse_temperature: float | Sequence[float],
    iterations: int = 3,
    eps: float = 1e-8,
    record: bool = False,
    coupling: bool = False,
    softmax: Softmax = over_parents,
    triton: bool = False,
) -> Routed:
    """The routing file's `em_routing` on votes that stay u and W."""
    check_iterations(iterations)
    fit = fit_step(triton)(votes, activation, softmax=softmax)
    cost = votes.shape[3] * beta_u if beta_u.ndim == 1 else beta_u.sum(-1)  # (J,): sum_h beta_u
    parents: tuple[Tensor, ...] = ()
    history: list[Step] = []
    for t, inverse in enumerate(temperatures(inverse_temperature, iterations)):
        total, mu, variance, _ = fit(eps, *parents)
        logit = inverse * (beta_a - total * (cost + 0.5 * variance.log().sum(-1)))  # sum_h cost_jh, summed first
        if record:
            history.append(Step(fit.couplings(*parents), mu))
        if t < iterations - 1:
            parents = (F.logsigmoid(logit), mu, variance)
    c = history[-1].coupling if record else fit.couplings(*parents) if coupling else None
    return Routed(mu, logit.sigmoid(), c, variance, tuple(history) if record else None)
