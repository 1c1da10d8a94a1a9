"""Pose x weight -> votes: dense, convolutional, shared. One form serves them all.

A pose is C rows of d numbers (a vector pose is one row); the vote of child i for parent j is pose_i @ W_ij, C rows
of h numbers. Children come in G groups of R that share their transform: i = g * R + r. A dense layer has R = 1, one
that takes any number of children G = 1, a class layer shared over positions has a group per type. A convolutional
layer is dense at every place of its output: its places join the batch axis. Where votes have to be formed, they are
for a block of children at a time, and again in the backward pass instead of being stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..routing.checks import is_transformed
from ..routing.math import OverPositions, Softmax

# Elements of a block's largest temporary: a CPU wants it in its cache, a GPU wants to be filled.
BUDGET = {"cpu": 3 << 18, "cuda": 1 << 26}


class Votes(NamedTuple):
    """Votes not computed yet. weight[j, :, g] is W_ij.

    With children as the third axis, products of c_ij, u_i and W_ij run over long rows of children, and a block of
    children is a view of batched matrices, never a copy.
    """

    u: Tensor  # (B, G, R, C, d)
    weight: Tensor  # (J, d, G, h)

    def size(self) -> tuple[int, int, int, int]:
        """(B, I, J, D) of the explicit votes. A method like a tensor's: older Dynamo reads no property of a tuple."""
        b, g, r, c, _ = self.u.shape
        return b, g * r, self.weight.shape[0], c * self.weight.shape[3]

    @property
    def repeats(self) -> int:
        """R, children that share a transform."""
        return self.u.shape[2]

    def explicit(self) -> Tensor:
        """All votes, (B, I, J, D)."""
        return torch.einsum("bgrcd,jdgh->bgrjch", self.u, self.weight).reshape(self.size())

    def split(self, children: int) -> list[Votes]:
        """Blocks of about `children` children. Split, not sliced: the gradient is then one concatenation."""
        _, g, r, _, _ = self.u.shape
        if children >= g * r:  # not split into one part: what is traced with any number of children asks how many
            return [self]
        if g == 1:
            return [Votes(u, self.weight) for u in self.u.split(max(children, 1), 2)]
        step = max(children // r, 1)
        return [Votes(u, w) for u, w in zip(self.u.split(step, 1), self.weight.split(step, 2), strict=True)]


class Windows(NamedTuple):
    """Votes of a convolutional layer whose children are still where they overlap, in the image.

    Kernels that can read patches there take it for the `Votes` of those, B * H' * W' x (types * k * k).
    """

    image: Tensor  # (B, types, H, W, D)
    weight: Tensor  # (J, d, G, h)
    rows: int  # C, of a pose
    kernel: int
    stride: int

    def size(self) -> tuple[int, int, int, int]:
        """(B * H' * W', I, J, D) of the explicit votes."""
        b, t, h, w, _ = self.image.shape
        places = ((h - self.kernel) // self.stride + 1) * ((w - self.kernel) // self.stride + 1)
        return b * places, t * self.kernel**2, self.weight.shape[0], self.rows * self.weight.shape[3]

    @property
    def repeats(self) -> int:
        return 1


def group(u: Tensor, groups: int, rows: int) -> Tensor:
    """Poses (B, I, D) -> (B, G, R, C, d)."""
    b, i, dim = u.shape
    return u.reshape(b, groups, i // groups, rows, dim // rows)


def add_bias(votes: Votes, bias: Tensor) -> Votes:
    """Add bias (J, C, G, h) to every vote: C more columns of the pose, which pick a row of the bias each."""
    u, weight = votes
    b, g, r, c, _ = u.shape
    pick = torch.eye(c, dtype=u.dtype, device=u.device).expand(b, g, r, c, c)
    return Votes(torch.cat([u, pick], -1), torch.cat([weight, bias], 1))


def add_coordinates(votes: Votes, yx: Tensor) -> Votes:
    """Add each child's place yx (R, 2) to the first two elements of the right-hand column of its votes (em).

    A vector pose has no columns: its first two elements take them.
    """
    u, weight = votes
    b, g, _, c, _ = u.shape
    j, _, _, h = weight.shape
    yx = yx.to(u.dtype)
    if c == 1:
        extra = yx[:, None]  # (R, 1, 2), element k of the vote takes coordinate k
        rows = torch.eye(2, h, dtype=u.dtype, device=u.device)
    else:
        extra = F.pad(yx, (0, c - 2))[:, :, None]  # (R, C, 1), row k of the vote takes coordinate k
        rows = F.pad(yx.new_ones(1, 1), (h - 1, 0))
    u = torch.cat([u, extra.expand(b, g, *extra.shape)], -1)
    return Votes(u, torch.cat([weight, rows[:, None].expand(j, -1, g, h)], 1))


def centres(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Centre of each place of a grid, (row, column) scaled to [0, 1], as (H * W, 2)."""
    y, x = ((torch.arange(size, device=device) + 0.5) / size for size in (height, width))
    return torch.cartesian_prod(y, x)


def patches(u: Tensor, kernel: int, stride: int) -> Tensor:
    """(B, T, H, W, D) -> (B, H', W', T * k * k, D): what each output looks at, every pose whole."""
    b, t, *size, d = u.shape
    h, w = ((side - kernel) // stride + 1 for side in size)
    if torch.compiler.is_compiling():  # of two unfolds torch 2.13 compiles a gradient for CPUs that writes past its end
        tall, wide = (stride * (n - 1) + 1 for n in (h, w))
        parts = [u[:, :, y : y + tall : stride, x : x + wide : stride] for y in range(kernel) for x in range(kernel)]
        windows = torch.stack(parts, 2).permute(0, 3, 4, 1, 2, 5)  # (B, H', W', T, k * k, D)
    else:
        windows = u.unfold(2, kernel, stride).unfold(3, kernel, stride).permute(0, 2, 3, 1, 5, 6, 4)
    return windows.reshape(b, h, w, t * kernel * kernel, d)


def covered(height: int, width: int, kernel: int, stride: int, device: torch.device | None = None) -> Tensor:
    """(P, k * k): the place of the input behind each kernel offset of each of the P outputs."""
    place = torch.arange(height * width, device=device).view(height, width)
    return place.unfold(0, kernel, stride).unfold(1, kernel, stride).reshape(-1, kernel * kernel)


def children_per_block(votes: Votes, per_child: int, softmax: Softmax) -> int:
    """How many children fit the budget when each needs `per_child` elements.

    At least the square root of all: what blocks leave behind to be merged then stays as small as a block.
    Children of a convolution that share their parents' softmax over positions stay together.
    """
    if torch.compiler.is_exporting():  # one block, so that the exported batch size stays free
        return votes.size()[1]
    budget = BUDGET.get(votes.u.device.type, BUDGET["cuda"])
    whole = softmax.kernel if isinstance(softmax, OverPositions) else 1
    fit = max(budget // max(per_child, 1), int(math.sqrt(votes.size()[1])))  # torch.compile cannot trace isqrt
    return max(fit // whole, 1) * whole


def split_children(x: Tensor | None, blocks: list[Votes], dim: int) -> list[Any]:
    """A tensor with an axis of children, cut like the blocks."""
    if x is None or len(blocks) == 1 or x.shape[dim] == 1:
        return [x] * len(blocks)
    return list(x.split([block.size()[1] for block in blocks], dim))


def add_up(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, one part alive at a time."""
    return functools.reduce(torch.add, parts)


def recompute(function: Callable[..., Any], *inputs: Any) -> Any:
    """function(*inputs), whose temporaries are computed again in the backward pass; torch.func has no checkpoints."""
    needed = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if not needed or torch.compiler.is_exporting() or is_transformed():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
