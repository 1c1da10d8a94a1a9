r"""Votes on a CPU, block by block in memory that is used again.

On a CPU a temporary's pages cost more than its arithmetic: a fresh block of votes is written through page faults, a
block that stays in the cache is not. So the steps of `attend.cpu` and `fit.cpu` are autograd functions with their
gradients written out, over one layout in which every operation is contiguous:

    v (i, B, D, J),   v_i = u_i W_i: one matrix product per group of children,  (R B C, d) x (d, h J)

Parents come last: what belongs to a parent (B, D, J) repeats over children, a coupling (i, B, 1, J) over the pose.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...routing.checks import is_transformed
from ...routing.math import OverPositions, Softmax, over_parents
from .. import votes as _votes
from ..votes import Votes

FEWEST = 8  # children in a block, before the batch is cut instead


class Source(NamedTuple):
    """Poses and weights in the layout of the steps."""

    u: Tensor  # (G, R, B, C, d)
    weight: Tensor  # (G, d, h, J)

    @property
    def batch(self) -> int:
        return self.u.shape[2]

    @property
    def block(self) -> tuple[int, int, int]:
        """B, D, J: what follows the children in a block of votes."""
        (_, _, b, c, _), (_, _, h, j) = self.u.shape, self.weight.shape
        return b, c * h, j


class Block(NamedTuple):
    """Children of some groups, and of each group some: one of the two is all, or one of it."""

    groups: slice
    members: slice
    children: slice


def fits(votes: Votes) -> bool:
    """Whether these votes lie on a CPU, have elements, and are not traced."""
    return eager(*votes) and all(x.numel() > 0 for x in votes)


def eager(*tensors: Tensor) -> bool:
    """Whether these lie on a CPU and are not traced."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting() or torch.jit.is_tracing():
        return False
    ordinary = all(type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu" for x in tensors)  # none is fake
    return ordinary and not is_transformed()


def is_batched(*tensors: Tensor) -> bool:
    """Whether some are many gradients at once, by vmap or `is_grads_batched`, which take plain operators alone."""
    batched, legacy = torch._C._functorch.is_batchedtensor, torch._C._functorch.is_legacy_batchedtensor
    return any(batched(x) or legacy(x) for x in tensors)


def sources_of(votes: Votes, softmax: Softmax) -> list[Source]:
    """Poses and weights that all iterations share, a chunk of the batch each.

    One copy, or none where `SlicedPatches` laid them out as they are read here. Chunks are such that a block
    of the budget has some children of each example. Rows that share a softmax over positions stay together.
    """
    u, weight = votes
    _, _, j, d = votes.size()
    whole = softmax.child.shape[0] if isinstance(softmax, OverPositions) else 1
    fit = max(_votes.BUDGET["cpu"] // (FEWEST * d * j), math.isqrt(u.shape[0]))
    rows = max(fit // whole, 1) * whole
    transforms = weight.permute(2, 1, 3, 0).contiguous()
    ready = u.shape[2] == 1 and u[0, 0].is_contiguous() and u.stride(0) == u[0, 0].numel()
    return [Source(x if ready else x.contiguous(), transforms) for x in u.permute(1, 2, 0, 3, 4).split(rows, 2)]


def children_blocks(source: Source, softmax: Softmax) -> list[Block]:
    """Blocks of children that fit the budget; a kernel's children stay together where they share a softmax.

    (Those have a transform each, r = 1.)
    """
    g, r = source.u.shape[:2]
    b, d, j = source.block
    whole = softmax.kernel if isinstance(softmax, OverPositions) else 1
    fit = max(_votes.BUDGET["cpu"] // (b * d * j), math.isqrt(g * r))  # never so many that starting them is the cost
    fit = max(fit // whole, 1) * whole
    across, within = max(fit // r, 1), min(fit, r)
    blocks = []
    for k in range(0, g, across):
        for m in range(0, r, within):
            groups, members = slice(k, min(k + across, g)), slice(m, min(m + within, r))
            blocks.append(Block(groups, members, slice(k * r + m, (groups.stop - 1) * r + members.stop)))
    return blocks


class Workspace:
    """Buffers the size of a block, by name; asked for again, the same memory comes back."""

    def __init__(self, source: Source, blocks: list[Block]) -> None:
        self.source = source
        self.most = max(k.children.stop - k.children.start for k in blocks)
        self.buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, children: int) -> Tensor:
        """(children, B, D, J), its contents whatever they were."""
        if name not in self.buffers:
            self.buffers[name] = self.source.u.new_empty(self.most, *self.source.block)
        return self.buffers[name][:children]

    def votes(self, block: Block, name: str = "votes") -> Tensor:
        """The votes of a block."""
        u, weight = self.source
        poses, transforms = u[block.groups, block.members], weight[block.groups]
        n, rows = poses.shape[0], poses.shape[1:4].numel()
        out = self(name, n * poses.shape[1])
        torch.bmm(poses.reshape(n, rows, -1), transforms.flatten(2), out=out.view(n, rows, -1))
        return out


class Gradients:
    """Of poses and weights, added up block by block."""

    def __init__(self, source: Source, wanted: tuple[bool, bool]) -> None:
        self.source = source
        u, weight = source
        g, r, b, c, d = u.shape
        self.u = u.new_empty(g, d, r, b * c) if wanted[0] else None
        self.weight = torch.zeros_like(weight) if wanted[1] else None

    def add(self, block: Block, gv: Tensor) -> None:
        """gv (i, B, D, J) of a block's votes. Products are turned so that their long side is the contiguous one."""
        u, weight = self.source
        poses, transforms = u[block.groups, block.members], weight[block.groups].flatten(2)
        n, r, b, c, d = poses.shape
        g = gv.view(n, r * b * c, -1)
        if self.u is not None:
            self.u[block.groups, :, block.members] = torch.bmm(transforms, g.transpose(1, 2)).view(n, d, r, b * c)
        if self.weight is not None:
            self.weight[block.groups].flatten(2).baddbmm_(poses.reshape(n, -1, d).transpose(1, 2), g)

    def poses(self) -> Tensor | None:
        """In the layout of the poses."""
        if self.u is None:
            return None
        g, d, r, _ = self.u.shape
        return self.u.view(g, d, r, *self.source.u.shape[2:4]).permute(0, 2, 3, 4, 1)


def couple(softmax: Softmax, logits: Tensor, leaky: bool = False) -> Tensor:
    """`softmax` of (i, B, J), which takes (B, i, J)."""
    if softmax is over_parents and not leaky:
        return logits.softmax(-1)
    return softmax(logits.transpose(0, 1), leaky=leaky).transpose(0, 1)


def couple_backward(softmax: Softmax, logits: Tensor, c: Tensor, gc: Tensor, leaky: bool = False) -> Tensor:
    """The gradient of `couple`'s logits."""
    if softmax is over_parents:  # leaky or not: the share that is dropped has no gradient
        return c * (gc - (c * gc).sum(-1, keepdim=True))
    with torch.enable_grad():
        a = logits.detach().requires_grad_()
        return torch.autograd.grad(couple(softmax, a, leaky), a, gc)[0]
