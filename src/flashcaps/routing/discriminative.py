r"""Routing Towards Discriminative Power of Class Capsules (2021): the layer keeps its coefficients b (I, J).

    v_j = sum_i b_ij u_j|i,   s_j = squash(v_j)              Eq. 6, 2: no softmax, no iterations, signed b
    max_b  sum_k delta_jk ||v_jk||^2 - lambda penalty(b)     Eq. 10, 14: k runs over the batch

Coefficients take one step of gradient ascent per training step, after the weights (Algorithm 1), and are
frozen in evaluation.

The objective of parent j is a quadratic form b_j^T M_j b_j with M_j = sum_k delta_jk U_jk U_jk^T (Eq. 11), where the
rows of U_jk (I, D) are the votes. M_j is indefinite: along a direction whose eigenvalue exceeds the penalty's, b grows
without bound, unless the weights learn to make M_j smaller. `bounded` stops this growth: delta_jk = 0 where the margin
loss of s_jk is already 0, so an example moves b only while it has a gradient for the weights, too, and the rate follows
their learning rate. Like any step of gradient ascent, it must not overshoot: classes outside the image shrink by
factors 1 - 2 rate e, for the eigenvalues e of sum_k U_jk U_jk^T, so the rate must be below 1 / e of the largest.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .checks import check_arguments, check_choice, check_devices, check_labels, check_number, check_overflow
from .contract import Function, Learned, Routed, Routing, Sizes, Step, Tensors
from .math import Softmax, compute_dtype, full_precision, length, over_parents, squash


@full_precision
def discriminative_routing(
    votes: Tensor, coefficients: Tensor, *, record: bool = False, softmax: Softmax = over_parents
) -> Routed:
    """votes (B, I, J, D), coefficients (I, J) -> pose squash(sum_i b_ij votes), activation its length.

    `softmax` is not used: these coefficients are signed, and no distribution over parents.
    """
    b, i, j, _ = check_arguments(votes, coefficients=(coefficients, "IJ"))
    votes, dtype = votes.to(compute_dtype(votes)), votes.dtype
    v = torch.einsum("ij,bijd->bjd", coefficients.to(votes.dtype), votes)  # Eq. 6   (B, J, D)
    s = squash(v)  # Eq. 2
    coupling = coefficients.to(votes.dtype).expand(b, i, j)
    history = (Step(coupling, s.to(dtype)),) if record else None
    check_overflow((s,), votes=votes, coefficients=coefficients)
    return Routed(s.to(dtype), length(s).to(dtype), coupling, history=history)


def label_signs(labels: Tensor, v: Tensor, margins: tuple[float, float] | None = None) -> Tensor:
    """delta (B, J): +1 for the classes in an image, -1 for the others. labels (B,) indices or (B, J) multi-hot.

    margins (m+, m-): delta is 0 for classes in the image of length m+ or more, and for others of length m- or less.
    v (B, J, D) is before squash, lengths are after it.
    """
    if labels.ndim == 1:
        labels = labels[:, None] == torch.arange(v.shape[1], device=labels.device)
    signs = labels.to(v.dtype) * 2 - 1
    if margins is None:
        return signs
    (present, absent), lengths = margins, length(squash(v.detach()))
    return signs * torch.where(signs > 0, lengths < present, lengths > absent)


def ascend(
    coefficients: Tensor, agreement: Tensor, batch: int, rate: float | Tensor, strength: float, penalty: str
) -> Tensor:
    """One step of Eq. 13 or 15, given agreement_ij = sum_k delta_jk u_j|i . v_j (summed over the batch).

    These are the equations as printed: Eq. 13 has lambda / 2 inside the sum over the batch, so its penalty counts once
    per example; Eq. 15 has lambda outside the sum, inside the factor 2. In the exact gradients of Eq. 10 and 14 the
    penalty would count once, as 2 gamma lambda b and gamma lambda sign(b).
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
    b, _, j, _ = check_arguments(votes, coefficients=(coefficients, "IJ"))
    check_labels("labels", labels, b, j)
    check_devices(votes, labels=labels)
    check_number("rate", rate)
    check_number("strength", strength)
    votes = votes.to(compute_dtype(votes))
    v = torch.einsum("ij,bijd->bjd", coefficients.to(votes.dtype), votes)  # before squash
    agreement = torch.einsum("bj,bijd,bjd->ij", label_signs(labels, v), votes, v)
    check_overflow((agreement,), votes=votes, coefficients=coefficients)
    risen = ascend(coefficients.to(votes.dtype), agreement, b, rate, strength, penalty)  # fp16 may not hold the sum
    return risen.to(coefficients.dtype)


class ForwardPass:
    """What the ascent needs of a layer's last forward pass in training: its votes, and the coefficients in its graph.

    Both belong to that graph, so copies of the layer start without them. moves: whether coefficients should move.
    """

    def __init__(self, moves: bool = True) -> None:
        self.votes: Any = None  # `kernels.votes.Votes`
        self.coefficients: Tensor | None = None
        self.version: int | None = None  # of the weights, which tells whether an optimiser has moved them
        self.state_version: int | None = None  # of the layer's coefficients
        self.moves = moves

    def keep(self, learned: Tensors, weight: Tensor, hidden: bool) -> Tensors:
        """Puts a copy of the coefficients into the graph, so that the layer's own may change at any time.

        A checkpointed layer runs again in the backward pass, by when its own may have risen: it gets the copy again.
        """
        if not self._runs_again(weight):
            self._expect_ascent(weight, learned["coefficients"])
            self.coefficients = learned["coefficients"].clone()
            if hidden:  # the objective of the class layer gives its gradient
                self.coefficients.requires_grad_()
        assert self.coefficients is not None
        return {**learned, "coefficients": self.coefficients}

    def _runs_again(self, weight: Tensor) -> bool:
        """Whether this is inside a backward pass, with the weights of the last forward pass."""
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() < 0:
            return False
        return self.coefficients is not None and self.version == weight._version

    def _expect_ascent(self, weight: Tensor, state: Tensor) -> None:
        """Warns, once, if an optimiser has moved the weights since the last pass while the coefficients stayed."""
        if torch.compiler.is_compiling():
            self.version = None
            return
        left = self.votes is not None and self.version is not None and self.version != weight._version
        if left and self.moves and self.state_version == state._version:
            self.moves = False
            warnings.warn("discriminative routing: the weights have moved, the coefficients have not; call "
                          "flashcaps.ascend_coefficients(model, labels) between the forward pass and optimiser.step() "
                          "(rate=0 keeps them as they are)", stacklevel=2)  # fmt: skip
        self.version, self.state_version = weight._version, state._version

    def clear(self) -> None:
        self.votes = None

    def __reduce__(self) -> tuple[type[ForwardPass], tuple[bool]]:
        return ForwardPass, (self.moves,)  # for pickle and for deepcopy


@dataclass(frozen=True)
class Discriminative(Routing):
    """rate (gamma), strength (lambda) and penalty ("l2" or "l1") of the coefficients' own update.

    Nine classes of ten push a capsule's coefficients towards 0, where they stay: at a rate of 1e-4 some classes of
    MNIST die while the weights warm up, at 1e-5 none does.

    bounded: the ascent stops where the margin loss is 0, and its rate follows the learning rate of the weights, so a
    batch that is solved moves coefficients by their penalty alone. The paper has neither. Where the ascent stops, the
    option of the class layer decides for hidden layers, too.
    """

    title = "Discriminative routing"
    function = staticmethod(discriminative_routing)
    output_activation = "length"
    loss = "margin"

    iterations: int = 1
    rate: float = 1e-5
    strength: float = 1e-3
    penalty: str = "l2"
    bounded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rate", self.rate)
        check_number("strength", self.strength)
        check_choice("penalty", self.penalty, ("l2", "l1"))

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        if sizes.children is None:
            raise ValueError("in_capsules: discriminative routing keeps a coefficient per child, got None (any number)")
        start = 1 / sizes.parents  # not 0, where the gradient is 0, too
        return {"coefficients": Learned((sizes.children, sizes.parents), start=start, per_child=True, state=True)}

    def memory(self) -> ForwardPass:
        return ForwardPass(moves=self.rate != 0)

    def init_weights(self, weight: Tensor, sizes: Sizes) -> None:
        nn.init.trunc_normal_(weight, std=0.1, a=-0.2, b=0.2)  # dynamic's, whose network the paper takes

    def run(self, function: Function, votes: Any, activation: Tensor | None, learned: Tensors, **common: Any) -> Routed:
        return function(votes, learned["coefficients"], **common)
