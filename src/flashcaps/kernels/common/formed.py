r"""Votes of a block of children, formed by a matrix product and read where it left them, in the cache where they fit.

For what is no product of poses and transforms, and for poses too wide for the registers of kernels that form votes
themselves (both in `attend.wide`). A block's votes are (children, B C, J h). Backward they are formed again, and their
gradients overwrite them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..votes import Votes
from .rows import empty_fp32, power_of_two

SIZE = 1 << 23  # elements of a block's votes: 32 MB, within the second-level cache of a large GPU
# Sums over children, as large as the votes of one, are read and written once a block: of several children, if their
# votes are no more than half the layer's poses and transforms.
FEW = 8
LARGEST = 8192  # elements of one child's votes, which a program holds in registers


class Block(NamedTuple):
    """Some children: the first of them, poses (n, B C, d) and transforms (n, d, J h) in fp32."""

    first: int
    poses: Tensor
    transforms: Tensor

    @property
    def votes(self) -> Tensor:
        """(n, B C, J h), formed now."""
        return torch.bmm(self.poses, self.transforms)


def takes(votes: Votes) -> bool:
    """Whether the kernels do: children that share nothing, and few enough parents."""
    k = constants(*votes)
    return votes.repeats == 1 and 0 < k["CP"] * k["JP"] * k["HP"] <= LARGEST and votes.u.numel() > 0


def constants(u: Tensor, weight: Tensor) -> dict[str, Any]:
    """What kernels are compiled for. u (B, G, 1, C, d), weight (J, d, G, h)"""
    c, (j, _, _, h) = u.shape[3], weight.shape
    cp, jp, hp = power_of_two(c), power_of_two(j), power_of_two(h)
    return {"C": c, "H": h, "CP": cp, "JP": jp, "HP": hp, "num_warps": min(max(cp * jp * hp // 256, 1), 8)}


def blocks(u: Tensor, weight: Tensor) -> Iterator[Block]:
    poses, transforms = u[:, :, 0].float().transpose(0, 1).flatten(1, 2), weight.float().permute(2, 1, 0, 3).flatten(2)
    each = poses.shape[1] * transforms.shape[2]
    some = max(SIZE, min(FEW * each, (poses.numel() + transforms.numel()) // 2)) // each or 1
    for first in range(0, poses.shape[0], some):
        yield Block(first, poses[first : first + some], transforms[first : first + some])


def split(rows: int, d: int) -> int:
    """Into how many parts the sums over examples of a weight's gradient go, so that the product of a few small matrices
    of many rows fills a GPU. Partial sums are the sixteenth of the votes at most."""
    parts = math.gcd(rows, 64)
    while parts > 1 and 16 * parts * d > rows:
        parts //= 2
    return parts


class Gradients:
    """Of poses (G, B, C, d) and transforms (G, d, J, h), block by block from those of votes."""

    def __init__(self, u: Tensor, weight: Tensor) -> None:
        (b, g, _, c, d), (j, _, _, h) = u.shape, weight.shape
        self.u, self.weight = empty_fp32(u, g, b, c, d), empty_fp32(u, g, d, j, h)

    def take(self, block: Block, votes: Tensor) -> None:
        rows = slice(block.first, block.first + votes.shape[0])
        torch.bmm(votes, block.transforms.mT, out=self.u[rows].flatten(1, 2))
        parts = split(votes.shape[1], block.poses.shape[2])
        poses, votes = (x.unflatten(1, (parts, -1)).flatten(0, 1) for x in (block.poses, votes))
        sums = torch.bmm(poses.mT, votes).unflatten(0, (-1, parts))
        torch.sum(sums, 1, out=self.weight[rows].flatten(2))

    def laid_out_like(self, u: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        of_u = self.u.transpose(0, 1).to(u.dtype).reshape(u.shape).contiguous()
        return of_u, self.weight.permute(2, 1, 0, 3).to(weight.dtype).contiguous()
