r"""Routing Towards Discriminative Power of Class Capsules (2021): coefficients b (I, J) belong to the layer.

    v_j = sum_i b_ij u_j|i,   s_j = squash(v_j)              Eq. 6, 2: no softmax, no iterations, signed b
    max_b  sum_k delta_jk ||v_jk||^2 - lambda penalty(b)     Eq. 10, 14: k runs over the batch

Coefficients take one step of gradient ascent per training step, after the weights (Algorithm 1), and are
frozen in evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .checks import (
    can_look,
    check_choice,
    check_devices,
    check_given,
    check_number,
    check_overflow,
    check_tensor,
    check_votes,
)
from .contract import Function, Learned, Routed, Routing, Sizes, Step, Tensors
from .math import Softmax, compute_dtype, full_precision, length, over_parents, squash


@full_precision
def discriminative_routing(
    votes: Tensor, coefficients: Tensor, *, record: bool = False, softmax: Softmax = over_parents
) -> Routed:
    """votes (B, I, J, D), coefficients (I, J) -> pose squash(sum_i b_ij votes), activation its length.

    `softmax` is what other algorithms normalise by; these coefficients are signed and no distribution.
    """
    b, i, j, _ = check_votes(votes)
    check_given("coefficients", coefficients, (i, j), "one per child and parent")
    check_devices(votes, coefficients=coefficients)
    votes, dtype = votes.to(compute_dtype(votes)), votes.dtype
    v = torch.einsum("ij,bijd->bjd", coefficients.to(votes.dtype), votes)  # Eq. 6   (B, J, D)
    s = squash(v)  # Eq. 2
    coupling = coefficients.to(votes.dtype).expand(b, i, j)
    history = (Step(coupling, s.to(dtype)),) if record else None
    check_overflow((s,), votes=votes, coefficients=coefficients)
    return Routed(s.to(dtype), length(s).to(dtype), coupling, history=history)


def check_labels(labels: Tensor, batch: int, parents: int) -> None:
    check_tensor("labels", labels)
    if tuple(labels.shape) not in ((batch,), (batch, parents)):
        wanted = f"{(batch,)} class indices or {(batch, parents)} multi-hot"
        raise ValueError(f"labels: expected {wanted}, got {tuple(labels.shape)}")
    if labels.ndim == 1 and batch and can_look(labels) and not 0 <= labels.min() <= labels.max() < parents:
        raise ValueError(f"labels: expected classes from 0 to {parents - 1}, "
                         f"got {labels.min().item()} to {labels.max().item()}")


def label_signs(labels: Tensor, parents: int, dtype: torch.dtype) -> Tensor:
    """delta: +1 for the classes in an image, -1 for the others. labels (B,) indices or (B, J) multi-hot -> (B, J)."""
    if labels.ndim == 1:
        classes = torch.arange(parents, device=labels.device)
        return (labels[:, None] == classes).to(dtype) * 2 - 1
    return labels.to(dtype) * 2 - 1


def ascend(coefficients: Tensor, agreement: Tensor, batch: int, rate: float, strength: float, penalty: str) -> Tensor:
    """One step of Eq. 13 or 15, given agreement_ij = sum_k delta_jk u_j|i . v_j (summed over the batch).

    The printed equations are followed: Eq. 13 has lambda / 2 inside the sum over the batch, so its penalty counts
    once per example; Eq. 15 has lambda outside the sum but inside the factor 2. The exact gradients of Eq. 10 and
    14 would be lambda b counted once, twice gamma, and lambda sign(b), once gamma.
    """
    check_choice("penalty", penalty, ("l2", "l1"))
    if penalty == "l2":
        return coefficients + 2 * rate * (agreement - batch * strength / 2 * coefficients)  # Eq. 13
    return coefficients + 2 * rate * (agreement - strength * coefficients.sign())  # Eq. 15; sign(0) = 0


@full_precision
def discriminative_update(
    coefficients: Tensor, votes: Tensor, labels: Tensor, *, rate: float, strength: float, penalty: str = "l2"
) -> Tensor:
    """One ascent step on the batch, Eq. 13 ("l2") or Eq. 15 ("l1"): coefficients (I, J) -> (I, J).

    votes (B, I, J, D) are those of the step's own forward pass. rate (gamma) multiplies the sum over the batch.
    """
    b, i, j, _ = check_votes(votes)
    check_given("coefficients", coefficients, (i, j), "one per child and parent")
    check_labels(labels, b, j)
    check_devices(votes, coefficients=coefficients, labels=labels)
    check_number("rate", rate)
    check_number("strength", strength)
    votes = votes.to(compute_dtype(votes))
    signs = label_signs(labels, j, votes.dtype)
    v = torch.einsum("ij,bijd->bjd", coefficients.to(votes.dtype), votes)  # before squash
    agreement = torch.einsum("bj,bijd,bjd->ij", signs, votes, v)
    check_overflow((agreement,), votes=votes, coefficients=coefficients)
    risen = ascend(coefficients.to(votes.dtype), agreement, b, rate, strength, penalty)  # the sum may pass fp16's end
    return risen.to(coefficients.dtype)


class ForwardPass:
    """What the ascent needs of a layer's forward pass in training: its votes, and the coefficients its graph holds.

    It belongs to a graph, so a copy of the layer starts without it.
    """

    def __init__(self) -> None:
        self.votes: Any = None  # `kernels.votes.Votes`
        self.coefficients: Tensor | None = None
        self.version: int | None = None  # of the weights, to notice when they have moved on

    def keep(self, learned: Tensors, weight: Tensor, hidden: bool) -> Tensors:
        """A copy of the coefficients goes into the graph, so that the state itself may change at any time."""
        self.coefficients = learned["coefficients"].clone()
        if hidden:  # its gradient follows from the objective of the class layer
            self.coefficients.requires_grad_()
        self.version = None if torch.compiler.is_compiling() else weight._version
        return learned | {"coefficients": self.coefficients}

    def clear(self) -> None:
        self.votes = self.coefficients = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ForwardPass:
        return ForwardPass()

    def __reduce__(self) -> tuple[type[ForwardPass], tuple[()]]:
        return ForwardPass, ()


@dataclass(frozen=True)
class Discriminative(Routing):
    """rate (gamma), strength (lambda), penalty ("l2" or "l1") of the coefficients' own update.

    Nine classes of ten push a capsule's coefficients towards 0, where they stay: at a rate of 1e-4 some classes of
    MNIST die while the weights warm up, at 1e-5 none does.
    """

    title = "Discriminative routing"
    function = staticmethod(discriminative_routing)
    output_activation = "length"
    loss = "margin"

    iterations: int = 1
    rate: float = 1e-5
    strength: float = 1e-3
    penalty: str = "l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rate", self.rate)
        check_number("strength", self.strength)
        check_choice("penalty", self.penalty, ("l2", "l1"))

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        if sizes.children is None:
            raise ValueError("in_capsules: discriminative routing keeps a coefficient per child, got None (any number)")
        start = 1 / sizes.parents  # at 0 the gradient is 0 and it never moves
        return {"coefficients": Learned((sizes.children, sizes.parents), start=start, per_child=True, state=True)}

    def memory(self) -> ForwardPass:
        return ForwardPass()

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        nn.init.trunc_normal_(weight, std=0.1, a=-0.2, b=0.2)  # dynamic's, whose network the paper takes

    def run(
        self, function: Function, votes: Any, activation: Tensor | None, learned: Tensors, **common: Any
    ) -> Routed:
        return function(votes, learned["coefficients"], **common)
