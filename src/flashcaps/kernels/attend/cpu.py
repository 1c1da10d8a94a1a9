r"""`Attend`'s step on a CPU: agreement, softmax and weighted sum of one block of votes after the other.

    a_ij = l_ij + v_ij . q_j,   c_ij = softmax_j(a_ij),   s_j = sum_i c_ij v_ij

Backward forms the votes again:  gc_ij = v_ij . gs_j,  ga = softmax'(gc),  gv_ij = c_ij gs_j + ga_ij q_j,
gq_j = sum_i ga_ij v_ij. Saved: poses, weights, query, logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...routing.math import Softmax, over_parents
from ..common.cpu import Block, Gradients, Source, Workspace, children_blocks, couple, couple_backward, is_batched

EVERY = Block(slice(None), slice(None), slice(None))  # all children


class Options(NamedTuple):
    """How couplings follow from agreement."""

    leaky: bool = False
    softmax: Softmax = over_parents
    detach: bool = False  # no gradient through the agreement


def agreement(
    v: Tensor, query: Tensor | None, logits: Tensor | None, block: Block, scratch: Tensor | None = None
) -> Tensor:
    """a (i, B, J) of a block of votes (i, B, D, J). query (B, D, J), logits (I, 1, J) or (1, 1, J)"""
    i, b, _, j = v.shape
    a = v.new_zeros(i, b, j) if query is None else torch.mul(v, query, out=scratch).sum(2)
    if logits is not None:
        a += logits[block.children] if len(logits) > 1 else logits
    return a


class AttendStep(torch.autograd.Function):
    """s (B, D, J) from poses, weights (as `Source`'s), query (B, D, J) or None, logits (I or 1, 1, J) or None."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, options: Options
    ) -> Tensor:
        ctx.save_for_backward(u, weight, query, logits)
        ctx.options = options
        source = Source(u, weight)
        blocks = children_blocks(source, options.softmax)
        space = Workspace(source, blocks)
        s = u.new_zeros(source.block)
        for block in blocks:
            v = space.votes(block)
            scratch = space("scratch", len(v))
            c = couple(options.softmax, agreement(v, query, logits, block, scratch), options.leaky)
            s += torch.mul(v, c[:, :, None], out=scratch).sum(0)
        return s

    @staticmethod
    def backward(ctx: Any, gs: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, query, logits = ctx.saved_tensors
        options: Options = ctx.options
        if torch.is_grad_enabled() or is_batched(gs):  # the gradient is differentiated, or many are taken at once
            with torch.enable_grad():
                u, weight, query, logits = given = separate_nodes(ctx.saved_tensors)
                s = all_at_once(u, weight, query, logits, options)
            return *differentiable_gradients([s], [gs], given, ctx.needs_input_grad[:4]), None
        gs = gs.contiguous()  # callers turn what they get, and every block reads it
        source = Source(u, weight)
        gradients = Gradients(source, ctx.needs_input_grad[:2])
        blocks = children_blocks(source, options.softmax)
        space = Workspace(source, blocks)
        agree = query is not None and not options.detach
        gq = torch.zeros_like(query) if agree else None
        gl = None if logits is None else torch.zeros_like(logits)
        for block in blocks:
            v = space.votes(block)
            scratch, gv = space("scratch", len(v)), space("gradient", len(v))
            a = agreement(v, query, logits, block, scratch)
            c = couple(options.softmax, a, options.leaky)
            torch.mul(gs, c[:, :, None], out=gv)
            if agree or gl is not None:
                gc = torch.mul(v, gs, out=scratch).sum(2)
                ga = couple_backward(options.softmax, a, c, gc, options.leaky)
            if gq is not None:
                gq += torch.mul(v, ga[:, :, None], out=scratch).sum(0)
                gv.addcmul_(ga[:, :, None], query)
            if gl is not None:
                shared = len(gl) == 1
                gl[0 if shared else block.children] += ga.sum((0, 1)) if shared else ga.sum(1, keepdim=True)
            gradients.add(block, gv)
        return gradients.poses(), gradients.weight, gq, gl, None


def all_at_once(u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, options: Options) -> Tensor:
    """The same in operations autograd knows, all votes at once."""
    v = torch.einsum("grbcd,gdhj->grbchj", u, weight).flatten(3, 4).flatten(0, 1)  # (I, B, D, J)
    a = agreement(v.detach() if options.detach else v, query, logits, EVERY)
    return (couple(options.softmax, a, options.leaky)[:, :, None] * v).sum(0)


def separate_nodes(inputs: Sequence[Any]) -> list[Any]:
    """Each input as a node of its own. Without it the poses' gradient has the query's, which follows from them, too."""
    return [None if x is None else x.view_as(x) for x in inputs]


def differentiable_gradients(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of the inputs that need one, which can be differentiated again."""
    pairs = [(x, g) for x, g in zip(outputs, gradients, strict=True) if x.requires_grad]
    wanted = [x for x, yes in zip(inputs, needed, strict=True) if yes and x is not None]
    of_outputs = [x for x, _ in pairs], wanted, [g for _, g in pairs]
    found = iter(torch.autograd.grad(*of_outputs, create_graph=True, allow_unused=True))
    return [next(found) if yes else None for yes in needed]
