r"""The step em and heinsen share, by matrix products: parents fit a Gaussian to the votes assigned to them.

    E-step   r_ij = softmax_j (log prior_j + log N(v_ij; mu_j, sigma^2_j))        `routing.math.log_density`
    M-step   w_ij = gate_i r_ij;  mu_j, sigma^2_j: mean and variance of votes weighted by w      `weighted_moments`

Votes of one block of children are formed, used and dropped. A block gives its weight n, weighted sum and spread
about its own mean; blocks merge by Chan's rule, sum_k [M2_k + n_k (m_k - mu)^2], so every square is of a deviation:
expanded second moments would cancel in fp32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...routing.contract import Step
from ...routing.math import Softmax, log_density, over_parents
from ..attend.matrix import project
from ..common.cpu import fits, sources_of
from ..votes import Votes, children_per_block, recompute, split_children
from .cpu import FitStep, Inputs


def block_moments(use: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weight n (B, J), weighted sum and spread about the block's own mean (B, J, D) of a block's votes."""
    n = use.sum(1)
    total = torch.einsum("bij,bijd->bjd", use, v)
    mean = block_mean(n, total)
    return n, total, torch.einsum("bij,bijd->bjd", use, (v - mean[:, None]).square())


def block_mean(n: Tensor, total: Tensor) -> Tensor:
    # Next to nobody assigned: not 0 / 0, and the gradient mean / n stays a number (tiny itself is too small for that).
    return total / (n + torch.finfo(n.dtype).tiny ** 0.5)[..., None]


def merge(parts: list[tuple[Tensor, ...]], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Total weight (B, J), mean and variance (B, J, D) over all blocks; eps as in `weighted_moments`."""
    n, total, spread = (torch.stack(x) for x in zip(*(p[:3] for p in parts), strict=True))
    weight = n.sum(0)
    divisor = (weight + eps)[..., None]
    mean = total.sum(0) / divisor
    shift = n[..., None] * (block_mean(n, total) - mean).square()
    return weight, mean, (spread + shift).sum(0) / divisor + eps


class Rule(NamedTuple):
    r"""How a parent's logit follows from its fit: scale [offset - n sum_d (cost + 1/2 log sigma_d^2)] + score.

    scales: one for each iteration. spread: whether the logarithm is there. em: `routing.em.activation_logit`, where
    score is 0; heinsen: its Eq. 8, score alone. sharpness: tau of the E-step after each iteration; none: 1.
    """

    scales: tuple[float, ...]
    offset: Tensor | None = None  # (J,)
    cost: Tensor | None = None  # (J,), of each element
    spread: bool = False
    sharpness: tuple[float, ...] = ()

    def tau(self, t: int) -> float:
        return self.sharpness[t] if self.sharpness else 1.0

    def logit(self, scale: float, total: Tensor, variance: Tensor, score: Tensor) -> Tensor:
        if self.offset is None or self.cost is None:
            return score
        spread = 0.5 * variance.log().sum(-1) if self.spread else 0.0
        return scale * (self.offset - total * (variance.shape[-1] * self.cost + spread)) + score


class Fitted(NamedTuple):
    """The parents after an iteration."""

    mean: Tensor  # (B, J, D)
    variance: Tensor  # (B, J, D)
    logit: Tensor  # (B, J)

    def parents(self, tau: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """What the next iteration begins with: log prior, mean, variance.

        N(v; m, s^2)^tau is N(v; m, s^2 / tau) but for a factor of s^(1 - tau) in each element, which joins the prior.
        """
        prior = F.logsigmoid(self.logit)
        if tau == 1.0:
            return prior, self.mean, self.variance
        return prior + 0.5 * (1 - tau) * self.variance.log().sum(-1), self.mean, self.variance / tau


class Fit:
    """A layer's parents, its children cut into blocks once for all iterations.

    gate (B, I): the weight of each child. start (I, J): logits of the first assignment, default uniform.
    betas: heinsen's benefit to use and cost to ignore, each (I, J) or (J,).
    """

    def __init__(
        self,
        votes: Votes,
        gate: Tensor,
        *,
        start: Tensor | None = None,
        betas: tuple[Tensor, Tensor] | None = None,
        softmax: Softmax = over_parents,
    ) -> None:
        b, _, j, d = votes.size()
        self.softmax = softmax
        self.sources = sources_of(votes, softmax) if fits(votes) else []
        self.given = (gate, start, betas)
        self.blocks = votes.split(children_per_block(votes, b * j * d, softmax))
        self.gates = split_children(gate, self.blocks, 1)
        self.starts = split_children(start, self.blocks, 0)
        self.betas = [split_children(x if x.ndim == 2 else x[None], self.blocks, 0) for x in betas or ()]

    def assign(self, u: Tensor, weight: Tensor, start: Tensor | None, *parents: Tensor) -> tuple[Tensor, Tensor]:
        """r (B, I, J) from the parents' (log prior, mean, variance), or the first time from `start`; and the votes."""
        v = Votes(u, weight).explicit()
        if parents:
            prior, mean, variance = parents
            return self.softmax(prior[:, None] + log_density(v, mean, variance)), v
        a = v.new_zeros(v.shape[:3])
        return self.softmax(a if start is None else a + start), v

    def _block(
        self, u: Tensor, weight: Tensor, gate: Tensor, start: Tensor | None, betas: tuple[Tensor, ...], *parents: Tensor
    ) -> tuple[Tensor, ...]:
        r, v = self.assign(u, weight, start, *parents)
        use = gate[..., None] * r
        if not betas:
            return block_moments(use, v)
        benefit = (betas[0] * use).sum(1) - (betas[1] * (gate[..., None] - use)).sum(1)
        return *block_moments(use, v), benefit

    def __call__(self, eps: float, *parents: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """E-step (with parents) and M-step: total weight, mean, variance, and heinsen's score (B, J) or 0."""
        if self.sources:
            return self._on_cpu(eps, *parents)
        parts = [
            recompute(self._block, *block, self.gates[k], self.starts[k], tuple(x[k] for x in self.betas), *parents)
            for k, block in enumerate(self.blocks)
        ]
        score = torch.stack([p[3] for p in parts]).sum(0) if self.betas else torch.zeros_like(parts[0][0])
        return *merge(parts, eps), score

    def route(self, rule: Rule, eps: float, every: bool = True) -> list[Fitted]:
        """The parents after each iteration, all of which this form has at hand."""
        steps: list[Fitted] = []
        for t, scale in enumerate(rule.scales):
            total, mean, variance, score = self(eps, *(steps[-1].parents(rule.tau(t - 1)) if steps else ()))
            steps.append(Fitted(mean, variance, rule.logit(scale, total, variance, score)))
        return steps

    def _on_cpu(self, eps: float, *parents: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`__call__` in the layout and the memory of `common.cpu`."""
        gate, start, betas = self.given
        rows = [source.batch for source in self.sources]
        gates = [x.T.contiguous() for x in gate.split(rows)]
        prior, mean, variance = parents or (None, None, None)
        priors = [None] * len(rows) if prior is None else prior.split(rows)
        others = [
            [None] * len(rows) if x is None else [y.transpose(1, 2).contiguous() for y in x.split(rows)]
            for x in (mean, variance)
        ]
        first, use, ignore = (
            None if x is None else x.reshape(-1, 1, x.shape[-1]) for x in (start, *(betas or (None, None)))
        )
        parts = [
            FitStep.apply(self.softmax, eps, *Inputs(source.u, source.weight, g, first, use, ignore, p, m, v))
            for source, g, p, m, v in zip(self.sources, gates, priors, *others, strict=True)
        ]
        n, mean, spread, score = (torch.cat(x) for x in zip(*parts, strict=True))
        variance = spread / (n + eps)[:, None] + eps
        return n, mean.transpose(1, 2), variance.transpose(1, 2), score

    def couplings(self, *parents: Tensor) -> Tensor:
        """r (B, I, J)"""
        return torch.cat(
            [self.assign(*block, start, *parents)[0] for block, start in zip(self.blocks, self.starts, strict=True)], 1
        )


def spread_of_attended(votes: Votes, query: Tensor | None, softmax: Softmax, eps: float) -> tuple[Tensor, Tensor]:
    """Total coupling (B, J) and variance (B, J, D) of votes coupled by agreement (attention, ablation C)."""

    def block(u: Tensor, weight: Tensor, query: Tensor | None) -> tuple[Tensor, ...]:
        v = Votes(u, weight).explicit()
        a = v.new_zeros(v.shape[:3]) if query is None else project(u, weight, query)
        return block_moments(softmax(a), v)

    b, _, j, d = votes.size()
    parts = [recompute(block, *x, query) for x in votes.split(children_per_block(votes, b * j * d, softmax))]
    weight, _, variance = merge(parts, eps)
    return weight, variance


def couplings(
    fit: Any, steps: list[Fitted], rule: Rule, record: bool, coupling: bool
) -> tuple[Tensor | None, tuple[Step, ...] | None]:
    """The last iteration's, if asked for, and with `record` what each iteration did. fit: a `Fit` or a `TritonFit`."""
    if not (record or coupling):
        return None, None
    begun = [(), *(step.parents(rule.tau(t)) for t, step in enumerate(steps[:-1]))]
    if not record:
        return fit.couplings(*begun[-1]), None
    history = tuple(Step(fit.couplings(*x), step.mean, step.logit) for x, step in zip(begun, steps, strict=True))
    return history[-1].coupling, history
