r"""Dynamic Routing Between Capsules (Sabour, Frosst, Hinton, 2017), https://arxiv.org/abs/1710.09829

    c_ij = softmax_j(b_ij)                        Eq. 3
    s_j  = sum_i c_ij u_j|i,   v_j = squash(s_j)  Eq. 2, 1
    b_ij = b_ij + u_j|i . v_j                     Procedure 1, line 7
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .checks import check_arguments, check_iterations, check_overflow
from .contract import Function, Learned, Routed, Routing, Sizes, Step, Tensors
from .math import Softmax, compute_dtype, full_precision, length, over_children, over_parents, squash


@full_precision
def dynamic_routing(
    votes: Tensor,
    *,
    iterations: int = 3,
    logits: Tensor | None = None,
    bias: Tensor | None = None,
    leaky: bool = False,
    detach: bool = False,
    record: bool = False,
    softmax: Softmax = over_parents,
) -> Routed:
    """Procedure 1. votes (B, I, J, D) -> pose v (B, J, D), activation ||v|| (B, J), coupling c (B, I, J).

    logits (I, J) or (J,): log priors b_ij, 0 by default. bias (J, D): added to s_j in every iteration, as the authors'
    code does. leaky: one more parent, "none of the above", takes a share that is dropped. detach: gradients go
    through the last iteration alone.
    """
    b_, i, j, _ = check_arguments(votes, logits=(logits, "IJ", "J", None), bias=(bias, "JD", None))
    check_iterations(iterations)
    votes, dtype = votes.to(compute_dtype(votes)), votes.dtype
    b = votes.new_zeros(b_, i, j) if logits is None else logits.to(votes.dtype).expand(b_, i, j)
    history: list[Step] = []
    for t in range(iterations):
        u = votes.detach() if detach and t < iterations - 1 else votes
        c = softmax(b, leaky=leaky)  # Eq. 3   (B, I, J)
        s = torch.einsum("bij,bijd->bjd", c, u)  # Eq. 2   (B, J, D)
        v = squash(s if bias is None else s + bias.to(s.dtype))  # Eq. 1   (B, J, D)
        if record:
            history.append(Step(c, v.to(dtype)))
        if t < iterations - 1:
            agreement = torch.einsum("bijd,bjd->bij", u, v)  # Procedure 1, line 7   (B, I, J)
            b = b + (agreement.detach() if detach else agreement)
    check_overflow((v, c), votes=votes, logits=logits, bias=bias)
    return Routed(v.to(dtype), length(v).to(dtype), c, history=tuple(history) if record else None)


@dataclass(frozen=True)
class Dynamic(Routing):
    """leaky, detach: see `dynamic_routing`. prior: learn the log priors. bias: learn a bias, which starts from 0.1.

    over_children: the softmax of Eq. 3 runs over the children i, as in some public code, so that the couplings of each
    parent sum to 1.
    """

    title = "Dynamic routing"
    function = staticmethod(dynamic_routing)
    output_activation = "length"
    loss = "margin"

    leaky: bool = False
    detach: bool = False
    prior: bool = False
    bias: bool = False
    over_children: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.over_children and self.leaky:
            raise ValueError("over_children: expected leaky=False beside it: no parent competes for a child")

    @property
    def explicit(self) -> bool:
        return self.over_children

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        tensors = {}
        if self.prior:
            per_child = () if sizes.children is None else (sizes.children,)
            tensors["logits"] = Learned((*per_child, sizes.parents), per_child=bool(per_child), parents=-1)
        if self.bias:
            tensors["bias"] = Learned((sizes.parents, sizes.dim), start=0.1, parents=0)
        return tensors

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        nn.init.trunc_normal_(weight, std=0.1, a=-0.2, b=0.2)  # as the authors' code: cut at two standard deviations

    def run(self, function: Function, votes: Any, activation: Tensor | None, learned: Tensors, **common: Any) -> Routed:
        if self.over_children:
            common["softmax"] = over_children
        return function(votes, iterations=self.iterations, leaky=self.leaky, detach=self.detach, **learned, **common)
