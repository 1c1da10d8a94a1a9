"""`Attend` on a CUDA device: the same step in four Triton kernels, no vote and no coupling in memory; of wide poses
votes are formed a block of children at a time (`_attend_votes`).

Saved for the backward pass: poses, weights, query, logits, and one log-sum-exp per child. Results and gradients are
bitwise reproducible.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from ...routing.math import Softmax, over_parents
from ...routing.votes import Votes, Windows
from ..common.formed import takes
from .attention import route_attention
from .dynamic import route_dynamic
from .launch import sizes
from .matrix import project, uniform
from .ops import attend
from .plan import too_large, wide
from .votes import attend_votes

TRITON = importlib.util.find_spec("triton") is not None  # asked once: torch.compile cannot trace the question
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def supported(votes: Votes | Windows, softmax: Softmax = over_parents) -> str | None:
    """None if `TritonAttend`, or `attention_poses` on windows, can take these votes, else the reason why not."""
    u, weight, *window = votes
    if not TRITON:
        return "Triton is not installed"
    if u.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"votes on {u.device}; the kernel runs on CUDA devices"
    if u.dtype not in DTYPES or weight.dtype != u.dtype:
        return f"poses of {u.dtype}, weights of {weight.dtype}; the kernel takes both as fp32, bf16 or fp16"
    if softmax is not over_parents:
        return "a softmax other than the one over a child's parents"
    if not window and u.shape[2] != 1:
        return f"{u.shape[2]} children share each transform; the kernel takes one child each"
    reason = too_large(sizes(u, weight, window))
    return None if isinstance(votes, Votes) and wide(votes) and takes(votes) else reason


def _check(votes: Votes | Windows, softmax: Softmax) -> None:
    if (reason := supported(votes, softmax)) is not None:
        raise ValueError(f"votes: the Triton kernel cannot run, {reason}; use the matrix form")


def _per_child(logits: Tensor | None, votes: Votes) -> Tensor | None:
    """Logits (I, J) or (J,) as fp32 (I, J)."""
    return None if logits is None else logits.float().expand(votes.shape[1], votes.shape[2])


def dynamic_poses(
    votes: Votes,
    iterations: int,
    logits: Tensor | None = None,
    bias: Tensor | None = None,
    leaky: bool = False,
    detach: bool = False,
) -> Tensor:
    """v (B, J, D) after all iterations of dynamic routing in one operator; arguments as `dynamic_routing`'s."""
    _check(votes, over_parents)
    bias = None if bias is None else bias.float().expand(votes.shape[2], votes.shape[3])
    return route_dynamic(*votes, bias, _per_child(logits, votes), leaky, iterations, detach)[0]


def attention_poses(
    votes: Votes | Windows,
    pose: Tensor | None,
    iterations: int,
    scale: float = 1.0,
    norm: bool = True,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """p (B, J, D) after all iterations of attention in one operator; arguments as `attention_routing`'s."""
    _check(votes, over_parents)
    u, w, *window = votes
    gamma = beta = None
    if norm:
        gamma = u.new_ones(votes.shape[3]) if weight is None else weight
        beta = u.new_zeros(votes.shape[3]) if bias is None else bias
    return route_attention(u, w, pose, gamma, beta, window, scale, iterations)[0]


class TritonAttend:
    """One layer's `attend`, for children that share nothing."""

    def __init__(
        self,
        votes: Votes,
        logits: Tensor | None = None,
        leaky: bool = False,
        softmax: Softmax = over_parents,
        detach: bool = False,
    ) -> None:
        _check(votes, softmax)
        self.votes, self.leaky, self.detach = votes, leaky, detach
        self.logits = _per_child(logits, votes)

    def __call__(self, query: Tensor | None) -> Tensor:
        """s (B, J, D). query None: couplings of the logits alone."""
        query = None if query is None else query.to(self.votes.u.dtype)
        if not wide(self.votes):
            return attend(*self.votes, query, self.logits, self.leaky, self.detach)[0]
        if query is None and self.logits is None and not self.leaky:
            return uniform(*self.votes)
        return attend_votes(*self.votes, query, self.logits, self.leaky, self.detach)

    def couplings(self, query: Tensor | None) -> Tensor:
        """c (B, I, J), for those who ask."""
        b, i, j, _ = self.votes.shape
        u, weight = (x.detach() for x in self.votes) if self.detach else self.votes
        a = u.new_zeros(b, i, j) if query is None else project(u, weight, query.to(u.dtype))
        return over_parents(a if self.logits is None else a + self.logits.to(a.dtype), leaky=self.leaky)
