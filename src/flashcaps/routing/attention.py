r"""Capsules with Inverted Dot-Product Attention Routing (Tsai et al., 2020), https://arxiv.org/abs/2002.04764

    a_ij = p_j . v_ij                          Eq. 2 (times `scale`)
    r_ij = softmax_j(a_ij)                     Eq. 3
    p_j  = LayerNorm(sum_i r_ij v_ij)          Eq. 4
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import check_arguments, check_choice, check_iterations, check_number, check_overflow
from .contract import Function, Learned, Routed, Routing, Sizes, Step, Tensors
from .em import activation_logit
from .math import Softmax, compute_dtype, full_precision, over_parents, weighted_moments


@full_precision
def attention_routing(
    votes: Tensor,
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
    softmax: Softmax = over_parents,
) -> Routed:
    """Procedure 1: `iterations` steps, each from the parents' pose to their next. votes (B, I, J, D), pose (B, J, D).

    pose None: the first step has uniform coefficients. weight, bias (D,): scale and shift of LayerNorm, which
    norm=False leaves out (ablation A). beta_u (J,) or (J, D) and beta_a (J,): parents have the activation of em
    (ablation C), and `activation` (B, I) multiplies the votes of each child.
    """
    b, i, j, d = check_arguments(
        votes, pose=(pose, "BJD", None), weight=(weight, "D", None), bias=(bias, "D", None),
        activation=(activation, "BI", None), beta_u=(beta_u, "J", "JD", None), beta_a=(beta_a, "J", None),
    )  # fmt: skip
    check_iterations(iterations)
    check_number("scale", scale)
    if (beta_u is None) != (beta_a is None):
        raise ValueError(f"{'beta_u' if beta_u is None else 'beta_a'}: expected with the other beta, got None")
    votes, dtype = votes.to(compute_dtype(votes)), votes.dtype
    if activation is not None:
        votes = votes * activation.to(votes.dtype)[..., None, None]
    p, gamma, beta = (None if x is None else x.to(votes.dtype) for x in (pose, weight, bias))
    history: list[Step] = []
    for _ in range(iterations):
        a = votes.new_zeros(b, i, j) if p is None else scale * torch.einsum("bijd,bjd->bij", votes, p)  # Eq. 2
        r = softmax(a)  # Eq. 3   (B, I, J)
        p = torch.einsum("bij,bijd->bjd", r, votes)  # Eq. 4   (B, J, D)
        p = F.layer_norm(p, (d,), gamma, beta) if norm else p
        if record:
            history.append(Step(r, p.to(dtype)))
    active = variance = logit = None
    if beta_u is not None and beta_a is not None:
        total, _, variance = weighted_moments(r, votes, eps=1e-8)
        logit = activation_logit(total, variance, beta_u.to(votes.dtype), beta_a.to(votes.dtype), 1.0)
        active = logit.sigmoid().to(dtype)
    learned = {"weight": weight, "bias": bias, "beta_u": beta_u, "beta_a": beta_a}
    check_overflow((p, r, logit), votes=votes, pose=pose, activation=activation, **learned)
    assert p is not None
    return Routed(p.to(dtype), active, r, variance, tuple(history) if record else None)


@dataclass(frozen=True)
class Attention(Routing):
    """scale: of the agreement; None is D ** -0.5, as in the authors' code. norm: LayerNorm, scale and shift learned.

    activation: capsules have the activation of em (ablation C). initial: the parents' pose before the first step,
    "zero", "learned" (starts from 0) or "random" (drawn once).
    """

    title = "Inverted dot-product attention"
    function = staticmethod(attention_routing)
    stepwise = True

    iterations: int = 1
    scale: float | None = None
    norm: bool = True
    activation: bool = False
    initial: str = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale is not None:
            check_number("scale", self.scale)
        check_choice("initial", self.initial, ("zero", "learned", "random"))
        if self.activation:  # the one declaration that depends on an option
            for name in ("input_activation", "output_activation"):
                object.__setattr__(self, name, "probability")

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        tensors: dict[str, Learned] = {}
        if self.norm:
            tensors |= {"weight": Learned((sizes.dim,), start=1.0), "bias": Learned((sizes.dim,))}
        if self.activation:
            beta = Learned((sizes.parents,), parents=0)
            tensors |= {"beta_u": beta, "beta_a": beta}
        if self.initial != "zero":
            random = self.initial == "random"
            tensors["initial"] = Learned((sizes.parents, sizes.dim), random=random, state=random, parents=0)
        return tensors

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        children = sizes.children or 1  # I * k * k in a convolutional layer
        nn.init.normal_(weight, std=(weight.shape[0] / (weight.shape[1] * children)) ** 0.5)

    def run(
        self,
        function: Function,
        votes: Any,
        activation: Tensor | None,
        learned: Tensors,
        pose: Tensor | None = None,
        **common: Any,
    ) -> Routed:
        """Routes from `pose`, or from the initial one."""
        b, _, j, d = votes.size()
        initial = learned.get("initial")
        learned = {name: x for name, x in learned.items() if name != "initial"}
        if pose is None and initial is not None:
            pose = initial.expand(b, j, d)
        return function(
            votes,
            pose,
            iterations=self.iterations,
            scale=d**-0.5 if self.scale is None else self.scale,
            norm=self.norm,
            activation=activation,
            **learned,
            **common,
        )
