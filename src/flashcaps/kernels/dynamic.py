"""Dynamic routing without votes.

The logits of iteration t are b_ij = l_ij + v_ij . (v_j^1 + ... + v_j^(t-1)): agreement is linear in the parent, so a
sum of parents (B, J, D) stands for all the logits (B, I, J), which are never stored either.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..routing.checks import check_iterations
from ..routing.contract import Routed, Step
from ..routing.math import Softmax, length, over_parents, squash
from .attend.matrix import Attend
from .attend.plan import wide
from .attend.triton import TritonAttend, dynamic_poses
from .votes import Votes


def dynamic_routing(
    votes: Votes,
    *,
    iterations: int = 3,
    logits: Tensor | None = None,
    bias: Tensor | None = None,
    leaky: bool = False,
    detach: bool = False,
    record: bool = False,
    coupling: bool = False,
    softmax: Softmax = over_parents,
    triton: bool = False,
) -> Routed:
    """The routing file's `dynamic_routing` on votes that stay u and W."""
    check_iterations(iterations)
    if triton and not (record or coupling or wide(votes)):
        v = dynamic_poses(votes, iterations, logits, bias, leaky, detach)  # all iterations in one operator
        return Routed(v, length(v))
    kind: Any = TritonAttend if triton else Attend
    last = kind(votes, logits, leaky, softmax, detach)
    early = kind(Votes(votes.u.detach(), votes.weight.detach()), logits, leaky, softmax) if detach else last
    query: Tensor | None = None
    history: list[Step] = []
    for t in range(iterations):
        attend = early if t < iterations - 1 else last
        s = attend(query)
        v = squash(s if bias is None else s + bias)
        if record:
            history.append(Step(attend.couplings(query), v))
        if t < iterations - 1:
            seen = v.detach() if detach else v
            query = seen if query is None else query + seen
    c = history[-1].coupling if record else attend.couplings(query) if coupling else None
    return Routed(v, length(v), c, history=tuple(history) if record else None)
