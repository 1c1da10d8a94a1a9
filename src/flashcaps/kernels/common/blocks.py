"""Blocks of children, and functions of a block that are recomputed instead of stored."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...routing.math import OverPositions, Softmax
from ..votes import Votes

# Elements of a block's largest temporary: a CPU wants it in its cache, a GPU wants to be filled.
BUDGET = {"cpu": 3 << 18, "cuda": 1 << 26}


def children_per_block(votes: Votes, per_child: int, softmax: Softmax) -> int:
    """How many children fit the budget when each needs `per_child` elements.

    At least the square root of all: what blocks leave behind to be merged then stays as small as a block.
    Children of a convolution that share their parents' softmax over positions stay together.
    """
    if torch.compiler.is_exporting():  # one block, so that the exported batch size stays free
        return votes.shape[1]
    budget = BUDGET.get(votes.u.device.type, BUDGET["cuda"])
    whole = softmax.kernel if isinstance(softmax, OverPositions) else 1
    fit = max(budget // max(per_child, 1), math.isqrt(votes.shape[1]))
    return max(fit // whole, 1) * whole


def split_children(x: Tensor | None, blocks: list[Votes], dim: int) -> list[Any]:
    """A tensor with an axis of children, cut like the blocks."""
    if x is None or x.shape[dim] == 1:
        return [x] * len(blocks)
    return list(x.split([block.shape[1] for block in blocks], dim))


def add_up(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, one part alive at a time."""
    return functools.reduce(torch.add, parts)


def recompute(function: Callable[..., Any], *inputs: Any) -> Any:
    """function(*inputs), whose temporaries are computed again in the backward pass."""
    needed = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if not needed or torch.compiler.is_exporting():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
