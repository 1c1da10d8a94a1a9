"""Heinsen's routing without votes: one pass over blocks of children per iteration, E-, D- and M-step together."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..routing.checks import check_iterations
from ..routing.contract import Routed
from ..routing.math import Softmax, over_parents
from .fit.matrix import Fit, Rule, couplings
from .votes import Votes


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
    """The routing file's `heinsen_routing` on votes that stay u and W. vote_bias (J, C, G, h):
    the bias that kernels add themselves; in the matrix form it is in the votes."""
    check_iterations(iterations)
    kind: Any = Fit
    given: dict[str, Any] = {"start": start, "betas": (beta_use, beta_ignore), "softmax": softmax}
    if triton:
        from .fit.triton import TritonFit as kind

        given["bias"] = vote_bias
    fit = kind(votes, score.sigmoid(), **given)
    rule = Rule((1.0,) * iterations)
    steps = fit.route(rule, eps, record or coupling)
    c, history = couplings(fit, steps, rule, record, coupling)
    return Routed(steps[-1].mean, steps[-1].logit, c, steps[-1].variance, history)
