"""Inverted dot-product attention without votes."""

from __future__ import annotations

from torch import Tensor

from ..routing._math import Softmax, over_parents
from ..routing._types import Routed, Step
from ..routing.em import activation_logit
from ..votes import Votes
from ._fit import spread_of_attended
from ._norm import layer_norm_poses
from ._steps import attend_step


def attention_routing(
    votes: Votes,
    pose: Tensor | None = None,
    *,
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
    """The routing file's `attention_routing` on votes that stay u and W."""
    u, w = votes
    if activation is not None:
        u = u * activation.to(u.dtype).view(*u.shape[:3], 1, 1)
    votes = Votes(u, w)
    query = None if pose is None else scale * pose.to(u.dtype)
    attend = attend_step(triton)(votes, softmax=softmax)
    p = attend(query)
    p = layer_norm_poses(p, weight, bias) if norm else p
    c = attend.couplings(query) if record or coupling else None
    active = variance = None
    if beta_u is not None and beta_a is not None:
        total, variance = spread_of_attended(votes, query, softmax, eps=1e-8)
        active = activation_logit(total, variance, beta_u, beta_a, 1.0).sigmoid()
    return Routed(p, active, c, variance, (Step(c, p),) if record and c is not None else None)
