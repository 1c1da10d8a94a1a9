"""Wide poses: their votes are stored, a few examples at a time, between the products that make and take them.

A transform of many multiply-adds is a matrix product, and its votes are many times the poses. Those of a few examples
are routed by the kernels of `_fit_tiles` and dropped; backward they are made again, and give way to their gradients in
place. Neither way are they copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from . import tiles_back as tiles
from .gradients import Sums, summed
from .source import CHUNKED, Source, by_rows, source_of, wide, wide_votes
from .walk_back import Given, Inputs, Options, Trail, added, walk_back

ROUNDED = 0.95  # of the room: allocators give a little more than is asked for
LEAST = 1 << 18  # elements of votes at a time, at least: a megabyte is little, however small the layer


def is_wide(x: Inputs, o: Options) -> bool:
    return not o.window and wide(x.weight, x.u.shape[3] * x.weight.shape[3])


def rows_at_once(x: Inputs, o: Options) -> int:
    """Rows whose votes are stored together: as many as have room in what poses, transforms and their gradients leave,
    within twice their bytes, of the parents and Z that are kept of all. A softmax over positions has all places of an
    example in one part. One example is the least, be the room what it may.

    A part takes 13 launches forward and about 20 backward at three iterations, whatever is in it. More rows would take
    fewer of them, but memory that is promised to others, and their votes would no longer fit a second-level cache.
    """
    (b, g, r, c, k), (j, _, _, h) = x.u.shape, x.weight.shape
    i, d, t = g * r, c * h, len(o.scales)
    places = math.prod((size - o.grid[2]) // o.grid[3] + 1 for size in o.grid[:2]) if o.grid else 1
    votes = i * j * d
    # votes, then chunks or poses and their gradients; gates, Z and sums; tables and gradients of parents
    row = votes + max(int(CHUNKED * votes), 2 * i * c * k) + i * (4 * t + 4) + j * (t * (4 * d + 5) + 6 * d)
    kept = b * (t * (2 * d + 2) * j + (t - 1) * i) + 2 * x.weight.numel()  # transforms and their gradient, in fp32
    room = (2 * x.u.nbytes + 3 * x.weight.nbytes) / 4 + 2 * b * j * d - kept
    return max(int(ROUNDED * room / (row * places)), LEAST // (votes * places), 1) * places


def parts_of(x: Inputs, o: Options, by_group: Tensor | None) -> Iterator[tuple[slice, Inputs, Source]]:
    """Some rows, what is given of them, and their votes. Whoever takes a part drops it before the next is made.

    by_group: wide transforms, `grouped`; None: all rows are one part.
    """
    if by_group is None:
        yield slice(None), x, source_of(x.u, x.weight, x.bias, o.window_of(x.u))
        return
    b, some = x.u.shape[0], rows_at_once(x, o)
    for begin in range(0, b, some):
        rows = slice(begin, min(begin + some, b))
        part = x.rows(rows)
        yield rows, part, wide_votes(part.u, by_group, x.bias)


def grouped(weight: Tensor) -> Tensor:
    """(J, K, G, H) -> (G, K, J, H) in fp32"""
    return weight.float().permute(2, 1, 0, 3).contiguous()


def gradients_in_parts(x: Inputs, o: Options, given: Given) -> list[Tensor | None]:
    """`gradients_of` wide poses."""
    by_group = grouped(x.weight)
    g_weight, total = torch.zeros_like(by_group), Sums()
    g_u, g_share, g_offset = (None if y is None else torch.empty_like(y) for y in (x.u, x.share, x.offset))
    g_gate = x.gate.new_empty(x.gate.shape if o.gated else 0)
    of_rows = (g_share, g_offset, g_gate if o.gated else None)
    for rows, part, source in parts_of(x, o, by_group):
        sums, past = Sums(beta=total.beta), given.rows(rows)
        past = past._replace(normalisers=past.normalisers.contiguous())
        _turn(source, part, o, past, walk_back(source, part, o, past, sums))
        assert g_u is not None
        _take(source.by_parent, part.u, by_group, g_u[rows], g_weight)
        for whole, found in zip(of_rows, (sums.share, sums.offset, sums.gate), strict=True):
            if whole is not None and found is not None:
                whole[rows] = found
        total.beta, total.first = sums.beta, added(total.first, sums.first)
        total.slope = added(total.slope, None if sums.slope is None else sums.slope.sum(0))
        total.shift = added(total.shift, None if sums.shift is None else sums.shift.sum(0))
        if x.bias is not None and source.shift is None:
            total.own = added(total.own, source.by_parent.sum((1, 2)))
        del source, part, sums, past
    first, beta = (None if y is None else summed(y) for y in (total.first, total.beta))
    weight = g_weight.permute(2, 1, 0, 3).to(x.weight.dtype).contiguous()
    return [g_u, weight, _of_bias(x.bias, total), g_gate, g_share, first, beta, g_offset, total.slope]


def _of_bias(bias: Tensor | None, total: Sums) -> Tensor | None:
    """(J, C, G, H) of the sums over examples: (D, J), or of each group (G, C, J, H)."""
    if bias is None:
        return None
    found = total.shift.t() if total.shift is not None else total.own
    assert found is not None
    found = found.reshape(bias.shape) if total.own is None else found.permute(2, 1, 0, 3)
    return found.to(bias.dtype).contiguous()


def _turn(source: Source, x: Inputs, o: Options, given: Given, trail: Trail) -> None:
    """Votes into their gradients."""
    (b, i, _, r), none = source.sizes, trail.table
    first, beta, shares = (none if y is None else y for y in (x.first, x.beta, trail.shares))
    tiles.wide_vote_gradients[(b * i, source.blocks)](
        source.by_parent, trail.table, first, given.normalisers, x.gate if trail.gates is None else trail.gates, beta,
        trail.score, trail.sums, shares, b, i, r, **source.options, T=len(o.scales), FIRST=x.first is not None,
        SCORE=x.beta is not None, SHARED=trail.gates is not None,
    )  # fmt: skip


def _take(g_votes: Tensor, u: Tensor, by_group: Tensor, g_u: Tensor, g_weight: Tensor) -> None:
    """The gradient of poses, and that of transforms added to what is there. g_votes (G, B, R, C, J, H)"""
    (g, b, r, c, j, h), k = g_votes.shape, u.shape[4]
    by_row, matrices = g_votes.view(g, -1, j * h), by_group.view(g, k, j * h)
    g_u.copy_((by_row @ matrices.mT).view(g, b, r, c, k).transpose(0, 1))
    g_weight.view(g, k, j * h).baddbmm_(by_rows(u).mT, by_row)
