r"""How far the votes that a parent attends to lie apart, for attention's capsules with activations (ablation C).

    r_ij = softmax_j(v_ij . q_j),   n_j = sum_i r_ij,   m_j = sum_i r_ij (v_ij - mean_j)^2      (B, J, D)

Squares of votes are no product of poses and transforms. So votes of a block of children are formed by a matrix product,
as many as stay in a GPU's cache, and read there once; backward forms them again and leaves their gradients in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..votes import Votes
from ._rows import power_of_two

BLOCK = 1 << 23  # elements of a block's votes: 32 MB, within the second-level cache of a large GPU
LARGEST = 8192  # elements of one child's votes, which a program holds in registers


def takes(votes: Votes) -> bool:
    """Whether the kernels do."""
    return votes.repeats == 1 and 0 < _elements(*votes) <= LARGEST and votes.u.numel() > 0


def variance_of_attended(votes: Votes, query: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Total coupling (B, J) and variance (B, J, D) of votes coupled by agreement, as `spread_of_attended`'s."""
    n, _, m = spread(*votes, query)
    return n, m / (n + eps)[..., None] + eps


def _constants(u: Tensor, weight: Tensor, asked: bool) -> dict[str, Any]:
    c, (j, _, _, h) = u.shape[3], weight.shape
    cp, jp, hp = power_of_two(c), power_of_two(j), power_of_two(h)
    warps = min(max(cp * jp * hp // 256, 1), 8)
    return {"C": c, "H": h, "CP": cp, "JP": jp, "HP": hp, "ASKED": asked, "num_warps": warps}


def _elements(u: Tensor, weight: Tensor) -> int:
    k = _constants(u, weight, False)
    return k["CP"] * k["JP"] * k["HP"]


def _factors(u: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Poses (G, B C, d) and transforms (G, d, J h), in fp32."""
    return u[:, :, 0].float().transpose(0, 1).flatten(1, 2), weight.float().permute(2, 1, 0, 3).flatten(2)


def _blocks(poses: Tensor, transforms: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """First child, poses and transforms of blocks of children."""
    step = max(BLOCK // (poses.shape[1] * transforms.shape[2]), 1)
    for first in range(0, poses.shape[0], step):
        yield first, poses[first : first + step], transforms[first : first + step]


@torch.library.custom_op("flashcaps::spread", mutates_args=())
def spread(u: Tensor, weight: Tensor, query: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """n (B, J), and for the backward pass mean (B, J, D), m (B, J, D). u (B, G, 1, C, d), weight (J, d, G, h)."""
    from . import _spread_triton as kernels

    b, j = u.shape[0], weight.shape[0]
    n, mean, m = _empty(u, weight)
    q = mean if query is None else query.contiguous()
    constants = _constants(u, weight, query is not None)
    for first, poses, transforms in _blocks(*_factors(u, weight)):
        votes = torch.bmm(poses, transforms)
        kernels.spread[(b,)](votes, q, n, mean, m, b, j, votes.shape[0], first, **constants)
    return n, mean, m


def _empty(u: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, j, d = u.shape[0], weight.shape[0], u.shape[3] * weight.shape[3]
    n, mean, m = (torch.empty(shape, dtype=torch.float32, device=u.device) for shape in ((b, j), (b, j, d), (b, j, d)))
    return n, mean, m


@spread.register_fake
def _(u, weight, query):
    return _empty(u, weight)


@torch.library.custom_op("flashcaps::spread_backward", mutates_args=())
def spread_backward(
    gn: Tensor, gm: Tensor, u: Tensor, weight: Tensor, query: Tensor | None, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """gu, gW, and gq or nothing."""
    from . import _spread_triton as kernels

    (b, g, _, c, d), (j, _, _, h) = u.shape, weight.shape
    gu, gw = torch.empty(g, b, c, d, device=u.device), torch.empty(g, d, j, h, device=u.device)
    gq = torch.empty(0 if query is None else query.shape, dtype=torch.float32, device=u.device)
    q = mean if query is None else query.contiguous()
    constants = _constants(u, weight, query is not None)
    for first, poses, transforms in _blocks(*_factors(u, weight)):
        votes, rows = torch.bmm(poses, transforms), slice(first, first + poses.shape[0])
        kernels.spread_backward[(b,)](votes, q, mean, gn, gm, gq, b, j, votes.shape[0], first, **constants)
        torch.bmm(votes, transforms.mT, out=gu[rows].flatten(1, 2))
        torch.bmm(poses.mT, votes, out=gw[rows].flatten(2))
    of_u = gu.transpose(0, 1).to(u.dtype).reshape(u.shape).contiguous()
    of_query = gq if query is None else gq.to(query.dtype)
    return of_u, gw.permute(2, 1, 0, 3).to(weight.dtype).contiguous(), of_query


@spread_backward.register_fake
def _(gn, gm, u, weight, query, mean):
    gq = mean.new_empty(0) if query is None else query.new_empty(query.shape)
    return u.new_empty(u.shape), weight.new_empty(weight.shape), gq


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _differentiate(ctx: Any, gn: Tensor, _: Tensor, gm: Tensor) -> tuple[Tensor | None, ...]:
    u, weight, query, mean = ctx.saved_tensors
    gu, gw, gq = spread_backward(gn.contiguous(), gm.contiguous(), u, weight, query, mean)
    return gu, gw, None if query is None else gq


spread.register_autograd(_differentiate, setup_context=_keep)
