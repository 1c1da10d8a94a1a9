"""Heinsen's routing without votes: one pass over blocks of children per iteration, E-, D- and M-step together."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..routing._checks import check_iterations
from ..routing._math import Softmax, over_parents
from ..routing._types import Routed, Step
from ..votes import Votes
from ._steps import fit_step


def heinsen_routing(
    votes: Votes,
    score: Tensor,
    *,
    beta_use: Tensor,
    beta_ignore: Tensor,
    iterations: int = 3,
    eps: float = 1e-5,
    start: Tensor | None = None,
    record: bool = False,
    coupling: bool = False,
    softmax: Softmax = over_parents,
    triton: bool = False,
    vote_bias: Tensor | None = None,
) -> Routed:
    """The routing file's `heinsen_routing` on votes that stay u and W. vote_bias (J, C, 1, h): to be added to them."""
    check_iterations(iterations)
    more = {} if vote_bias is None else {"bias": vote_bias}  # the kernels' alone: else it is in the votes
    fit = fit_step(triton)(votes, score.sigmoid(), start=start, betas=(beta_use, beta_ignore), softmax=softmax, **more)
    parents: tuple[Tensor, ...] = ()
    history: list[Step] = []
    for t in range(iterations):
        _, mu, variance, a = fit(eps, *parents)
        if record:
            history.append(Step(fit.couplings(*parents), mu))
        if t < iterations - 1:
            parents = (F.logsigmoid(a), mu, variance)
    c = history[-1].coupling if record else fit.couplings(*parents) if coupling else None
    return Routed(mu, a, c, variance, tuple(history) if record else None)
