r"""The fit em and heinsen share, on a GPU: the Triton twin of `matrix.Fit`, same interface, same numbers.

A routing is one operator (`op`). It stores Z_i = log sum_j exp a_ij (B, I) and the parents (B, J, D), never a coupling.
A softmax over positions is one over parents times the share of the child that a place gets, which depends on Z alone
(`positions`). Votes are made in registers; `plan` says which are stored instead, while they are needed.
"""

from __future__ import annotations

import os

from torch import Tensor

from ...routing.math import OverPositions, Softmax, over_parents
from ..common.patches import windowed
from ..common.rows import DTYPES
from ..votes import Votes, Windows, add_bias
from .matrix import Fit, Fitted, Rule
from .op import fit_routing
from .plan import is_stored, is_wide

WIDEST = 64  # pose elements that kernels hold, or walk over, unrolled


def supported(votes: Votes | Windows, softmax: Softmax = over_parents) -> str | None:
    """None where `TritonFit` can run, else the reason why not."""
    b, i, j, dim = votes.size()
    u = votes.image if isinstance(votes, Windows) else votes.u
    if u.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"votes on {u.device}: the kernels run on CUDA devices"
    if u.dtype not in DTYPES or votes.weight.dtype not in DTYPES:
        return f"{u.dtype}: the kernels compute in float32"
    if softmax is not over_parents and not (isinstance(softmax, OverPositions) and softmax.grid):
        return "softmax: only over parents, or parents and the positions of a grid"
    if min(b, i, j, dim, votes.weight.shape[1]) == 0:
        return "empty votes"
    if dim > WIDEST:
        return f"votes of {dim} elements: at most {WIDEST} fit the registers"
    if isinstance(votes, Windows) and (is_stored(votes.weight) or is_wide(votes.weight, dim)):
        return "an image: votes this few or this wide are stored, of patches"
    return None


class TritonFit:
    """`Fit` on a GPU: same arguments, same results, in float32.

    Children may still be in an image (`Windows`), and so is their gate then. bias (J, C, G, h): added to every vote of
    a group. Where there is one group it moves parents, and never a vote.
    """

    def __init__(
        self,
        votes: Votes | Windows,
        gate: Tensor,
        *,
        start: Tensor | None = None,
        betas: tuple[Tensor, Tensor] | None = None,
        softmax: Softmax = over_parents,
        bias: Tensor | None = None,
    ) -> None:
        reason = supported(votes, softmax)
        if reason is not None:
            raise ValueError(f"votes: expected what the Triton kernels can route, got {reason}; use backend='matrix'")
        self.votes, self.start, self.betas, self.softmax, self.bias = votes, start, betas, softmax, bias
        self.gate = gate.float().contiguous()

    def route(self, rule: Rule, eps: float, every: bool = True) -> list[Fitted]:
        """The parents after every iteration, or after the last."""
        (b, i, _, _), n = self.votes.size(), len(rule.scales) if every else 1
        first = first_z = None
        grid = list(self.softmax.grid or ()) if isinstance(self.softmax, OverPositions) else []
        if self.start is not None:
            first = self.start.float().softmax(-1).contiguous()
            first_z = self.start.float().logsumexp(-1).expand(b, i).contiguous() if grid else None
        learned = (*(self.betas or (None, None)), rule.offset, rule.cost)
        use, ignore, offset, cost = (None if x is None else x.float().contiguous() for x in learned)
        bias = None if self.bias is None else self.bias.contiguous()
        if isinstance(self.votes, Windows):
            kernel, stride = self.votes.kernel, self.votes.stride
            (u, _), window = windowed(self.votes.image, kernel, stride), [kernel, stride]
        else:
            u, window = self.votes.u, []
        out = fit_routing(
            u, self.votes.weight.contiguous(), bias, self.gate, first_z, first, use, ignore, offset, cost,
            list(rule.scales), rule.spread, grid, window, eps, list(rule.sharpness), n,
        )  # fmt: skip
        return [Fitted(out[t].transpose(1, 2), out[n + t].transpose(1, 2), out[2 * n + t]) for t in range(n)]

    def couplings(self, *parents: Tensor) -> Tensor:
        """r (B, I, J), for those who ask."""
        if isinstance(self.votes, Windows):
            raise ValueError("votes: expected those of patches where couplings are asked for, got an image")
        votes = self.votes if self.bias is None else add_bias(self.votes, self.bias.to(self.votes.u.dtype))
        return Fit(votes, self.gate, start=self.start, softmax=self.softmax).couplings(*parents)
