"""Which fused form takes given votes under backend="auto": a rule of device, dtype and shape, never a trial."""

from __future__ import annotations

import importlib.util

from ..routing._math import Softmax
from ..votes import Votes

HAS_TRITON = importlib.util.find_spec("triton") is not None


def pick_form(routing: str, votes: Votes, softmax: Softmax) -> str:
    """ "triton" on a CUDA device where the algorithm has kernels that take these votes, else "matrix".

    Where both run, the kernels are the faster at every size measured, and the leaner.
    """
    if votes.u.device.type != "cuda" or not HAS_TRITON:
        return "matrix"
    if routing in ("dynamic", "attention", "discriminative"):
        from ._attend_triton import supported
    elif routing in ("em", "heinsen"):
        from ._fit_triton import supported
    else:
        return "matrix"
    return "matrix" if supported(votes, softmax) else "triton"
