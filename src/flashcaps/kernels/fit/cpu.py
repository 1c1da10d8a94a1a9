r"""`matrix.Fit`'s step on a CPU: E-step and M-step of one block of votes after the other.

    a_ij = p_j - (1/2) sum_d [x_ij^2 / sigma_j^2 + log sigma_j^2],  x = v - mu,  r = softmax_j(a),  w = gate_i r_ij
    n_j = sum_i w_ij,  m_j = sum_i w_ij v_ij / (n_j + eps),  S_j = sum_i w_ij (v_ij - m_j)^2

The reference is `routing.math.log_density` and `weighted_moments`. Blocks merge by Chan's rule, as deviations from the
parents' last mean, or at first from one child's vote: where votes agree, so that variances are small and gradients
large, deviations are then exact. Backward forms the votes again; with y = v - m, whose weighted sum is eps m:

    gT = (gm - 2 eps gS m) / (n + eps),   gw = gn + y (gT + gS y),   gv = w (gT + 2 gS y) - ga x / sigma^2,
    ga = softmax'(gate gw)

Saved: the inputs, n and m.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...routing.math import Softmax
from ..attend.cpu import EVERY, differentiable_gradients, separate_nodes
from ..common.cpu import Block, Gradients, Source, Workspace, children_blocks, couple, couple_backward, is_batched


class Inputs(NamedTuple):
    """Tensors of a step. Parents (log prior, mean, variance) are None the first time; start and betas may be None."""

    u: Tensor  # (G, R, B, C, d)
    weight: Tensor  # (G, d, h, J)
    gate: Tensor  # (I, B)
    start: Tensor | None  # (I, 1, J), logits of the first coupling
    use: Tensor | None  # (I or 1, 1, J), heinsen's benefit to use
    ignore: Tensor | None  # (I or 1, 1, J), its cost to ignore
    prior: Tensor | None  # (B, J)
    mean: Tensor | None  # (B, D, J)
    variance: Tensor | None  # (B, D, J)

    def of(self, x: Tensor, block: Block) -> Tensor:
        """The part of x, (I or 1, ...), that belongs to a block's children."""
        return x[block.children] if len(x) > 1 else x


class Parents(NamedTuple):
    """What an E-step reads of the parents, computed once."""

    mean: Tensor  # (B, D, J)
    scale: Tensor  # 1 / sigma
    level: Tensor  # (B, J), log prior - sum of log sigma

    @classmethod
    def of(cls, inputs: Inputs) -> Parents | None:
        if inputs.mean is None or inputs.variance is None or inputs.prior is None:
            return None
        return cls(inputs.mean, inputs.variance.rsqrt(), inputs.prior - 0.5 * inputs.variance.log().sum(1))


def logits_of(
    x: Tensor, inputs: Inputs, parents: Parents | None, block: Block, scratch: Tensor | None = None
) -> Tensor:
    """a (i, B, J) from deviations x (i, B, D, J), or the first coupling's."""
    if parents is not None:
        return parents.level - 0.5 * torch.mul(x, parents.scale, out=scratch).square_().sum(2)
    a = x.new_zeros(x.shape[0], x.shape[1], x.shape[3])
    return a if inputs.start is None else a + inputs.of(inputs.start, block)


def mean_of(n: Tensor, total: Tensor) -> Tensor:
    return total / (n + torch.finfo(n.dtype).tiny)[:, None]  # nobody assigned: 0 / tiny, not 0 / 0


def reference_of(space: Workspace, blocks: list[Block], parents: Parents | None) -> Tensor:
    """The point that deviations are from, (B, D, J)."""
    return space.votes(blocks[0])[0].clone() if parents is None else parents.mean


class Moments:
    """Weight, weighted sum and spread about the mean of the blocks so far, of deviations from one reference."""

    def __init__(self, source: Source) -> None:
        b, _, j = source.block
        self.n = source.u.new_zeros(b, j)
        self.total, self.spread = source.u.new_zeros(2, *source.block)

    def add(self, x: Tensor, w: Tensor, scratch: Tensor) -> None:
        """A block's deviations (i, B, D, J) and weights (i, B, J), by Chan's rule."""
        each = w[:, :, None]
        n, total = w.sum(0), torch.mul(x, each, out=scratch).sum(0)
        mean = mean_of(n, total)
        spread = torch.sub(x, mean, out=scratch).square_().mul_(each).sum(0)
        apart = mean_of(self.n, self.total) - mean
        share = self.n * n / (self.n + n + torch.finfo(n.dtype).tiny)
        self.spread += spread + share[:, None] * apart.square()
        self.n += n
        self.total += total


class FitStep(torch.autograd.Function):
    """`Inputs` -> n (B, J), m and S (B, D, J), and heinsen's score (B, J) or 0."""

    @staticmethod
    def forward(ctx: Any, softmax: Softmax, eps: float, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        source, parents = Source(inputs.u, inputs.weight), Parents.of(inputs)
        blocks = children_blocks(source, softmax)
        space, found = Workspace(source, blocks), Moments(source)
        score, reference = torch.zeros_like(found.n), reference_of(space, blocks, parents)
        for block in blocks:
            x = space.votes(block).sub_(reference)
            scratch = space("scratch", len(x))
            gate = inputs.gate[block.children, :, None]
            w = gate * couple(softmax, logits_of(x, inputs, parents, block, scratch))
            found.add(x, w, scratch)
            if inputs.use is not None and inputs.ignore is not None:
                use, ignore = inputs.of(inputs.use, block), inputs.of(inputs.ignore, block)
                score += (use * w - ignore * (gate - w)).sum(0)
        n = found.n[:, None]
        centre = (found.total - eps * reference) / (n + eps)  # m - reference
        spread = found.spread + n * (mean_of(found.n, found.total) - centre).square()
        mean = reference + centre
        ctx.softmax, ctx.eps = softmax, eps
        ctx.save_for_backward(*tensors, found.n, mean, centre)
        return found.n, mean, spread, score

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, n, mean, centre = ctx.saved_tensors
        inputs = Inputs(*tensors)
        if torch.is_grad_enabled() or is_batched(*gradients):  # differentiated again, or many at once
            with torch.enable_grad():
                inputs = Inputs(*separate_nodes(tensors))
                outputs = plain(ctx.softmax, ctx.eps, inputs)
            return None, None, *differentiable_gradients(outputs, gradients, inputs, ctx.needs_input_grad[2:])
        gn, gm, gs, g_score = (g.contiguous() for g in gradients)  # callers turn what they get: every block reads these
        gt = (gm - 2 * ctx.eps * gs * mean) / (n + ctx.eps)[:, None]
        wanted = ctx.needs_input_grad[2:]
        return None, None, *Backward(inputs, ctx.softmax, centre, (gn, gt, gs, g_score), wanted).run()


class Backward:
    """One backward pass: what the blocks share, and the gradients they add to."""

    def __init__(
        self, inputs: Inputs, softmax: Softmax, centre: Tensor, gradients: tuple[Tensor, ...], wanted: tuple[bool, ...]
    ) -> None:
        self.inputs, self.softmax, self.centre = inputs, softmax, centre
        self.gn, self.gt, self.gs, self.g_score = gradients
        self.parents = Parents.of(inputs)
        self.source = Source(inputs.u, inputs.weight)
        self.sums = Gradients(self.source, (wanted[0], wanted[1]))
        self.found = {name: torch.zeros_like(x) for name, x in inputs._asdict().items() if x is not None}
        self.squares = torch.zeros_like(centre)  # sum_i ga x^2

    def run(self) -> list[Tensor | None]:
        blocks = children_blocks(self.source, self.softmax)
        space = Workspace(self.source, blocks)
        self.reference = reference_of(space, blocks, self.parents)
        for block in blocks:
            self.add(block, space)
        found = {**self.found, "u": self.sums.poses(), "weight": self.sums.weight}
        if self.parents is not None:
            precision = self.parents.scale.square()
            found["mean"] = precision * self.found["mean"]
            found["variance"] = 0.5 * (precision.square() * self.squares - precision * self.found["prior"][:, None])
        return [found.get(name) for name in Inputs._fields]

    def add(self, block: Block, space: Workspace) -> None:
        """One block's part of every gradient."""
        inputs, parents = self.inputs, self.parents
        x = space.votes(block).sub_(self.reference)
        scratch, gv = space("scratch", len(x)), space("gradient", len(x))
        gate = inputs.gate[block.children, :, None]
        a = logits_of(x, inputs, parents, block, scratch)
        r = couple(self.softmax, a)
        w = gate * r
        y = torch.sub(x, self.centre, out=scratch)
        gw = self.gn + torch.addcmul(self.gt, self.gs, y, out=gv).mul_(y).sum(2)
        gw = self.add_score(block, gate, w, gw)
        self.found["gate"][block.children] += (gw * r).sum(-1)
        torch.addcmul(self.gt, self.gs, y, value=2, out=gv).mul_(w[:, :, None])
        if parents is not None or inputs.start is not None:
            ga = couple_backward(self.softmax, a, r, gate * gw)
            self.add_logits(block, ga, x, gv, scratch)
        self.sums.add(block, gv)

    def add_score(self, block: Block, gate: Tensor, w: Tensor, gw: Tensor) -> Tensor:
        """Heinsen's score: the gradients of its betas, of the gate beside w, and gw with its part."""
        inputs = self.inputs
        if inputs.use is None or inputs.ignore is None:
            return gw
        use, ignore = inputs.of(inputs.use, block), inputs.of(inputs.ignore, block)
        for found, g in ((self.found["use"], self.g_score * w), (self.found["ignore"], self.g_score * (w - gate))):
            if len(found) > 1:
                found[block.children] += g.sum(1, keepdim=True)
            else:
                found += g.sum((0, 1))
        self.found["gate"][block.children] -= (self.g_score * ignore).sum(-1)
        return gw + self.g_score * (use + ignore)

    def add_logits(self, block: Block, ga: Tensor, x: Tensor, gv: Tensor, scratch: Tensor) -> None:
        """Through the coupling: to votes, mean, variance and prior, or to the first coupling's logits."""
        if self.parents is None:
            self.found["start"][block.children] += ga.sum(1, keepdim=True)
            return
        part = torch.mul(x, ga[:, :, None], out=scratch)
        self.found["prior"] += ga.sum(0)
        self.found["mean"] += part.sum(0)
        gv.addcmul_(part, self.parents.scale.square(), value=-1)
        self.squares += part.mul_(x).sum(0)


def plain(softmax: Softmax, eps: float, inputs: Inputs) -> tuple[Tensor, ...]:
    """`FitStep` in operations that autograd knows, all votes at once, for second derivatives."""
    v = torch.einsum("grbcd,gdhj->grbchj", inputs.u, inputs.weight).flatten(3, 4).flatten(0, 1)  # (I, B, D, J)
    parents, gate = Parents.of(inputs), inputs.gate[..., None]
    w = gate * couple(softmax, logits_of(v if parents is None else v - parents.mean, inputs, parents, EVERY))
    n = w.sum(0)
    mean = (w[:, :, None] * v).sum(0) / (n + eps)[:, None]
    spread = (w[:, :, None] * (v - mean).square()).sum(0)
    if inputs.use is None or inputs.ignore is None:
        return n, mean, spread, torch.zeros_like(n)
    return n, mean, spread, (inputs.use * w - inputs.ignore * (gate - w)).sum(0)
