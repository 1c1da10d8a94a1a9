"""Inverted dot-product attention without votes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..routing.contract import Routed, Step
from ..routing.em import activation_logit
from ..routing.math import Softmax, over_parents
from .attend.matrix import Attend, uniform_over_image
from .attend.plan import wide
from .attend.triton import TritonAttend, attention_poses
from .common.norm import layer_norm_poses
from .common.patches import gathered
from .fit.matrix import spread_of_attended
from .votes import Votes, Windows


def attention_routing(
    votes: Votes | Windows,
    pose: Tensor | None = None,
    *,
    iterations: int = 1,
    scale: float = 1.0,
    norm: bool = True,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: Tensor | None = None,
    beta_u: Tensor | None = None,
    beta_a: Tensor | None = None,
    record: bool = False,
    coupling: bool = False,
    softmax: Softmax = over_parents,
    triton: bool = False,
) -> Routed:
    """The routing file's `attention_routing` on votes that stay u and W, `iterations` of them."""
    active = beta_u is not None and beta_a is not None
    if isinstance(votes, Votes) and activation is not None:
        u = votes.u
        votes = Votes(u * activation.to(u.dtype).view(*u.shape[:3], 1, 1), votes.weight)
    if triton and not (record or coupling or active or wide(votes)):  # all iterations in one operator
        return Routed(attention_poses(votes, pose, iterations, scale, norm, weight, bias))
    if isinstance(votes, Windows):
        if pose is None and iterations == 1:
            p = uniform_over_image(votes)
            return Routed(layer_norm_poses(p, weight, bias) if norm else p)
        votes = gathered(votes)
    attend: Any = TritonAttend(votes, softmax=softmax) if triton else Attend(votes, softmax=softmax)
    history: list[Step] = []
    for _ in range(iterations):
        query = None if pose is None else scale * pose.to(votes.u.dtype)
        p = attend(query)
        pose = p = layer_norm_poses(p, weight, bias) if norm else p
        if record:
            history.append(Step(attend.couplings(query), p))
    c = history[-1].coupling if record else attend.couplings(query) if coupling else None
    a = variance = None
    if beta_u is not None and beta_a is not None:
        total, variance = _spread_of(votes, query, softmax, triton)
        a = activation_logit(total, variance, beta_u, beta_a, 1.0).sigmoid()
    return Routed(p, a, c, variance, tuple(history) if record else None)


def _spread_of(votes: Votes, query: Tensor | None, softmax: Softmax, triton: bool) -> tuple[Tensor, Tensor]:
    """Total coupling (B, J) and variance (B, J, D), for the activation."""
    if triton:
        from .attend.wide import variance_of_attended
        from .common.formed import takes

        if takes(votes):
            return variance_of_attended(votes, query, eps=1e-8)
    return spread_of_attended(votes, query, softmax, eps=1e-8)
