"""What kernels over `_voted` blocks share: a program has one example's parents and walks through the block's children.

A child's votes are (C, J, H), the rows and columns of their poses around the parents.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def within(C: tl.constexpr, J, H: tl.constexpr, CP: tl.constexpr, JP: tl.constexpr, HP: tl.constexpr):
    """Where the elements of a child's votes lie among (C, J, H) and among parents (J, C H), and which there are."""
    c, j, h = tl.arange(0, CP)[:, None, None], tl.arange(0, JP)[None, :, None], tl.arange(0, HP)[None, None, :]
    return (c * J + j) * H + h, (j * C + c) * H + h, (c < C) & (j < J) & (h < H)


@triton.jit
def over_pose(x):
    """(C, J, H) -> (J,)"""
    return tl.sum(tl.sum(x, axis=2), axis=0)


@triton.jit
def coupling(
    v, q, logits, i, J, JP: tl.constexpr, ASKED: tl.constexpr, PRIOR: tl.constexpr, LEAKY: tl.constexpr
):  # fmt: skip
    """Of child i, softmax over parents of logits_i + v . q; LEAKY: one more logit of 0, whose share is dropped."""
    j = tl.arange(0, JP)
    a = tl.full((JP,), 0.0, tl.float32)
    if PRIOR:
        a += tl.load(logits + i * J + j, mask=j < J, other=0.0)
    if ASKED:
        a += over_pose(v * q)
    a = tl.where(j < J, a, float("-inf"))
    top = tl.max(a, axis=0)
    if LEAKY:
        top = tl.maximum(top, 0.0)
    e = tl.exp(a - top)
    total = tl.sum(e, axis=0)
    if LEAKY:
        total += tl.exp(-top)
    return e / total
