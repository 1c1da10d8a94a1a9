"""EM routing without votes: one pass over blocks of children per iteration, E-step and M-step together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..routing.checks import check_iterations, check_per_iteration
from ..routing.contract import Routed, Step
from ..routing.math import Softmax, over_parents
from .fit.matrix import Fit, Rule, couplings
from .votes import Votes, Windows


def em_routing(
    votes: Votes | Windows,
    activation: Tensor,
    *,
    beta_u: Tensor,
    beta_a: Tensor,
    inverse_temperature: float | Sequence[float],
    iterations: int = 3,
    eps: float = 1e-8,
    sharpness: float | Sequence[float] = 1.0,
    logits: bool = False,
    record: bool = False,
    coupling: bool = False,
    softmax: Softmax = over_parents,
    triton: bool = False,
) -> Routed:
    """The routing file's `em_routing` on votes that stay u and W; in an image, so is activation."""
    check_iterations(iterations)
    kind: Any = Fit
    if triton:
        from .fit.triton import TritonFit as kind
    fit = kind(votes, activation, softmax=softmax)
    cost = beta_u if beta_u.ndim == 1 else beta_u.mean(-1)  # (J,)
    scales = check_per_iteration("inverse_temperature", inverse_temperature, iterations)
    taus = check_per_iteration("sharpness", sharpness, iterations)
    rule = Rule(scales, beta_a, cost, spread=True, sharpness=taus)
    steps = fit.route(rule, eps, record or coupling)
    c, history = couplings(fit, steps, rule, record, coupling)
    a = steps[-1].logit if logits else steps[-1].logit.sigmoid()
    if history is not None and not logits:
        history = tuple(Step(x.coupling, x.pose, step.logit.sigmoid()) for x, step in zip(history, steps, strict=True))
    return Routed(steps[-1].mean, a, c, steps[-1].variance, history)
