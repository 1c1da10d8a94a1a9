r"""The step em and heinsen share, on a GPU: the Triton twin of `_fit`, same interface, same numbers.

A step is one operator. It stores Z_i = log sum_j exp a_ij (B, I) and the parents (B, J, D), never a vote nor a
coupling. A softmax over positions is one over parents times the share of the child that its row of parents gets,
which depends on Z alone:  r_ij = exp(a_ij - Z_i) q_i,  q = softmax of Z over the rows that see the child.

Poses much wider than all the votes made of them (J h <= 4 d) are transformed once, by a matrix product, and their
votes stored: less to read at every iteration, and of the size of the poses.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ..routing._math import OverPositions, Softmax, over_parents
from ..votes import Votes, add_bias
from . import _fit_gradients as backward
from ._fit import Fit
from ._fit_forward import Source, describe, moments, normaliser
from ._fit_share import listed, share_gradient, share_of

UNROLLED = 128  # multiply-adds of one vote that kernels unroll; at 256 their compiler takes minutes
WIDEST = 64  # pose elements held in registers
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def supported(votes: Votes, softmax: Softmax = over_parents) -> str | None:
    """None where `TritonFit` can run, else the reason why not."""
    (b, i, j, dim), (_, _, _, c, d), h = votes.shape, votes.u.shape, votes.weight.shape[3]
    if votes.u.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"votes on {votes.u.device}: the kernels run on CUDA devices"
    if votes.u.dtype not in DTYPES or votes.weight.dtype not in DTYPES:
        return f"{votes.u.dtype}: the kernels compute in float32"
    if softmax is not over_parents and not (isinstance(softmax, OverPositions) and softmax.grid):
        return "softmax: only over parents, or parents and the positions of a grid"
    if min(b, i, j, dim, d) == 0:
        return "empty votes"
    if dim > WIDEST:
        return f"votes of {dim} elements: at most {WIDEST} fit the registers"
    if not stored(votes) and c * d * h > UNROLLED:
        return f"transforms of {c} x {d} by {d} x {h}: more than {UNROLLED} multiply-adds a vote"
    return None


def stored(votes: Votes) -> bool:
    """Whether votes, being few, are stored."""
    _, d, _, h = votes.weight.shape
    return votes.weight.shape[0] * h <= 4 * d


def source_of(votes: Votes) -> Source:
    """Votes in the layouts that kernels read. The gradient goes through `by_parent`, and u."""
    u, weight = votes
    b, i, j, d = votes.shape
    if stored(votes):
        by_parent = torch.einsum("bgrck,jkgh->bgrjch", u.float(), weight.float()).reshape(b, i, j, d).contiguous()
        return Source(None, by_parent, by_parent.detach().transpose(1, 2).contiguous())
    return Source(u.contiguous(), weight.permute(2, 1, 0, 3).contiguous(), weight.detach().contiguous())


@torch.library.custom_op("flashcaps::fit", mutates_args=())
def fit_step(
    u: Tensor | None, by_parent: Tensor, by_child: Tensor, bias: Tensor | None, gate: Tensor, beta: Tensor | None,
    parents: list[Tensor], grid: list[int], eps: float,
) -> list[Tensor]:  # fmt: skip
    """E-step and M-step: weight (B, J), mean and variance (B, D, J), score (B, J); and Z and q, (B, I) or empty.

    parents: none (couplings 1 / J), the first coupling (I, J), or prior (B, J), mean and variance (B, D, J). grid:
    empty, or that of a softmax over positions.
    """
    source = Source(u, by_parent, by_child, bias)
    z = share = None
    table, first = None, parents[0] if len(parents) == 1 else None
    if len(parents) == 3:
        table = describe(source, *parents)
        z = normaliser(source, table)
        if grid:
            share = share_of(z, grid)
    out = moments(source, (table, z, first), gate if share is None else gate * share, beta, eps)
    return [*out, *(gate.new_empty(0) if x is None else x for x in (z, share))]


@fit_step.register_fake
def _(
    u: Tensor | None, by_parent: Tensor, by_child: Tensor, bias: Tensor | None, gate: Tensor, beta: Tensor | None,
    parents: list[Tensor], grid: list[int], eps: float,
) -> list[Tensor]:  # fmt: skip
    b, i, j, _ = Source(u, by_parent, by_child).sizes
    d = Source(u, by_parent, by_child).dim
    z = (b, i) if len(parents) == 3 else (0,)
    shapes = ((b, j), (b, d, j), (b, d, j), (b, j), z, z if grid else (0,))
    return [gate.new_empty(s) for s in shapes]


@torch.library.custom_op("flashcaps::fit_backward", mutates_args=())
def fit_step_backward(
    u: Tensor | None, by_parent: Tensor, by_child: Tensor, bias: Tensor | None, gate: Tensor, beta: Tensor | None,
    parents: list[Tensor], grid: list[int], eps: float, outputs: list[Tensor],
    gradients: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    """Gradients of u, by_parent, bias, gate, beta and parents, those that there are."""
    source = Source(u, by_parent, by_child, bias)
    density = len(parents) == 3
    shared = density and bool(grid)
    weight, mean, variance, _, z, share = outputs
    prior, centre, scale = parents if density else (None, None, None)
    fitted = backward.Fitted(
        prior, centre, scale, parents[0] if len(parents) == 1 else None, z if density else None,
        gate * share if shared else gate, beta, weight, mean, variance,
    )  # fmt: skip
    g_weight, g_mean, g_variance, g_score = gradients
    context = backward.context(source, fitted, (g_weight, g_mean, g_variance, g_score), eps)
    alone = u is None or shared  # s is needed before, or without, the gradient of poses
    s = backward.child_sums(context) if alone else torch.empty_like(gate)
    g_z = share_gradient(share, gate * s, grid) if shared else None
    out = [] if u is None else [backward.child_gradients(context, s, g_z, sums=not alone)]
    of_parents, of_source = backward.parent_gradients(context, s, g_z)
    of_beta, of_first = backward.pair_gradients(context)
    if of_source is None:
        of_source = backward.weight_gradients(context, s, g_z)
    out += [of_source, *([] if context.bias is None else [context.bias.sum(0)])]
    out.append(share * s if shared else s)
    return out + [x for x in (of_beta, of_first) if x is not None] + of_parents


@fit_step_backward.register_fake
def _(
    u: Tensor | None, by_parent: Tensor, by_child: Tensor, bias: Tensor | None, gate: Tensor, beta: Tensor | None,
    parents: list[Tensor], grid: list[int], eps: float, outputs: list[Tensor],
    gradients: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    inputs = (u, by_parent, bias, gate, beta, *parents)
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs if x is not None]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    u, by_parent, by_child, bias, gate, beta, parents, ctx.grid, ctx.eps = inputs
    ctx.parents = len(parents)
    ctx.set_materialize_grads(False)  # most outputs of a step have no gradient, those of children's size never
    ctx.save_for_backward(u, by_parent, by_child, bias, gate, beta, *parents, *output)


def _differentiate(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    u, by_parent, by_child, bias, gate, beta, *rest = ctx.saved_tensors
    parents, outputs = rest[: ctx.parents], rest[ctx.parents :]
    given = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, outputs[:4], strict=False)]
    found = iter(fit_step_backward(
        u, by_parent, by_child, bias, gate, beta, parents, ctx.grid, ctx.eps, outputs, given
    ))  # fmt: skip
    g_u = None if u is None else next(found)
    g_source = next(found)
    g_bias = None if bias is None else next(found)
    g_gate = next(found)
    g_beta = None if beta is None else next(found)
    none: list[Tensor] | None = None if ctx.grid else []  # an empty list might be one of tensors
    return g_u, g_source, None, g_bias, g_gate, g_beta, list(found), none, None


fit_step.register_autograd(_differentiate, setup_context=_keep)


class TritonFit:
    """`Fit` on a GPU: same arguments, same results, in float32.

    bias (J, C, 1, h): added to every vote. It is the same for all children, so it moves parents and never a vote.
    """

    def __init__(
        self,
        votes: Votes,
        gate: Tensor,
        *,
        start: Tensor | None = None,
        betas: tuple[Tensor, Tensor] | None = None,
        softmax: Softmax = over_parents,
        bias: Tensor | None = None,
    ) -> None:
        reason = supported(votes, softmax)
        if reason is not None:
            raise ValueError(f"votes: expected what the Triton kernels can route, got {reason}; use backend='matrix'")
        b, i, j, _ = votes.shape
        self.votes, self.start, self.softmax, self.bias = votes, start, softmax, bias
        self.source = source_of(votes)
        if bias is not None:
            self.source = self.source._replace(bias=bias.float().view(j, -1).t().contiguous())
        self.gate = gate.float().contiguous()
        self.grid = listed(softmax.grid) if isinstance(softmax, OverPositions) else []
        self.first = [] if start is None else [start.float().softmax(-1).contiguous()]
        self.first_gate = self.gate
        if self.grid:
            z = self.gate.new_zeros(b, i) if start is None else start.float().logsumexp(-1).expand(b, i)
            self.first_gate = (self.gate * share_of(z, self.grid)).contiguous()
        self.beta = self.both = self.cost = None
        if betas is not None:
            use, ignore = (x.float() for x in betas)
            self.cost = self.gate @ ignore if ignore.ndim == 2 else self.gate.sum(1, keepdim=True) * ignore  # (B, J)
            both = use + ignore
            if both.ndim == 2:  # per child and parent: sum_i (beta_use + beta_ignore) w is summed where w is made
                self.beta = both.contiguous()
            else:
                self.both = both

    def _score(self, total: Tensor, benefit: Tensor) -> Tensor:
        """sum_i beta_use w - beta_ignore (gate - w)"""
        if self.cost is None:
            return benefit
        return (benefit if self.both is None else self.both * total) - self.cost

    def __call__(self, eps: float, *parents: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """E-step (with parents) and M-step: total weight, mean, variance, and heinsen's score (B, J) or 0."""
        given = self.first
        if parents:
            prior, mean, variance = (x.float() for x in parents)
            given = [prior.contiguous(), *(x.transpose(1, 2).contiguous() for x in (mean, variance))]
        gate = self.gate if parents else self.first_gate
        grid = self.grid if parents else []
        total, mean, variance, benefit, _, _ = fit_step(*self.source, gate, self.beta, given, grid, eps)
        return total, mean.transpose(1, 2), variance.transpose(1, 2), self._score(total, benefit)

    def couplings(self, *parents: Tensor) -> Tensor:
        """r (B, I, J), for those who ask."""
        votes = self.votes if self.bias is None else add_bias(self.votes, self.bias.to(self.votes.u.dtype))
        return Fit(votes, self.gate, start=self.start, softmax=self.softmax).couplings(*parents)
