r"""`attend` for wide poses, whose tiles would not fit the registers of `_attend_kernels`.

    a_ij = l_ij + v_ij . q_j,   c_ij = softmax_j(a_ij),   s_j = sum_i c_ij v_ij

Votes are formed a block of children at a time (`_voted`), for each iteration and on the way back: more products than
with votes that are stored, and memory of a block. Couplings are never stored. Bitwise reproducible.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..common.formed import Gradients, blocks, constants


@torch.library.custom_op("flashcaps::attend_votes", mutates_args=())
def attend_votes(
    u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool, detach: bool
) -> Tensor:
    """s (B, J, D); arguments as `attend`'s."""
    from . import votes_triton as kernels

    s = _empty(u, weight)
    options = {"ASKED": query is not None, "PRIOR": logits is not None, "LEAKY": leaky, **constants(u, weight)}
    q, prior = (s if x is None else x.contiguous() for x in (query, logits))
    for block in blocks(u, weight):
        votes = block.votes
        kernels.attend_votes[(u.shape[0],)](votes, q, prior, s, *s.shape[:2], votes.shape[0], block.first, **options)
    return s.to(u.dtype)


def _empty(u: Tensor, weight: Tensor) -> Tensor:
    shape = u.shape[0], weight.shape[0], u.shape[3] * weight.shape[3]
    return torch.empty(shape, dtype=torch.float32, device=u.device)


@attend_votes.register_fake
def _(u, weight, query, logits, leaky, detach):
    return _empty(u, weight).to(u.dtype)


@torch.library.custom_op("flashcaps::attend_votes_backward", mutates_args=())
def attend_votes_backward(
    gs: Tensor, u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool, detach: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gu, gW, gq, gl; what has no gradient comes back empty."""
    from . import votes_triton as kernels

    (b, j, _), into, gl = gs.shape, Gradients(u, weight), []
    gq = torch.empty(0 if query is None else query.shape, dtype=torch.float32, device=u.device)
    options = {"ASKED": query is not None, "PRIOR": logits is not None, "LEAKY": leaky, "DETACH": detach}
    q, prior = (gs if x is None else x.contiguous() for x in (query, logits))
    for block in blocks(u, weight):
        votes = block.votes
        ga = torch.empty(b if logits is not None else 0, votes.shape[0], j, dtype=torch.float32, device=u.device)
        kernels.attend_votes_backward[(b,)](
            votes, q, prior, gs, gq, ga, b, j, votes.shape[0], block.first, **options, **constants(u, weight)
        )
        into.take(block, votes)
        gl.append(ga.sum(0))
    of_logits = gq.new_empty(0) if logits is None else torch.cat(gl)
    return *into.laid_out_like(u, weight), gq if query is None else gq.to(query.dtype), of_logits


@attend_votes_backward.register_fake
def _(gs, u, weight, query, logits, leaky, detach):
    gq = u.new_empty(0, dtype=torch.float32) if query is None else query.new_empty(query.shape)
    gl = u.new_empty(0 if logits is None else logits.shape, dtype=torch.float32)
    return u.new_empty(u.shape), weight.new_empty(weight.shape), gq, gl


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u, weight, query, logits, ctx.leaky, ctx.detach = inputs
    ctx.save_for_backward(u, weight, query, logits)


def _differentiate(ctx: Any, gs: Tensor) -> tuple[Tensor | None, ...]:
    u, weight, query, logits = ctx.saved_tensors
    gu, gw, gq, gl = attend_votes_backward(gs.contiguous(), u, weight, query, logits, ctx.leaky, ctx.detach)
    return gu, gw, None if query is None else gq, None if logits is None else gl, None, None


attend_votes.register_autograd(_differentiate, setup_context=_keep)
