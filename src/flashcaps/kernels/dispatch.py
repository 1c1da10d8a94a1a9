"""Which fused form takes given votes under backend="auto": a rule of device, dtype and shape, never a trial."""

from __future__ import annotations

import importlib.util

from ..routing.math import Softmax
from ..routing.votes import Votes, Windows

HAS_TRITON = importlib.util.find_spec("triton") is not None


def pick_form(routing: str, votes: Votes | Windows, softmax: Softmax) -> str:
    """ "triton" on a CUDA device where the algorithm has kernels that take these votes, else "matrix".

    Where both run, the kernels are the faster at every size measured, and the leaner.
    """
    if votes.weight.device.type != "cuda" or not HAS_TRITON:
        return "matrix"
    reason: str | None = f"{routing} has no kernels"
    if routing in ("dynamic", "attention", "discriminative"):
        from .attend.triton import supported

        reason = supported(votes, softmax)
    elif routing in ("em", "heinsen"):
        from .fit.triton import supported as fit_supported

        reason = fit_supported(votes, softmax)
    return "matrix" if reason else "triton"


def leaves_patches(routing: str, backend: str, windows: Windows, softmax: Softmax) -> bool:
    """Whether kernels take children where they overlap in the image, so that no patch is copied."""
    asked = backend == "triton" or (backend == "auto" and windows.image.is_cuda)
    if routing not in ("attention", "em") or not HAS_TRITON or not asked:
        return False
    if routing == "em":
        from .fit.triton import supported as fit_supported

        return fit_supported(windows, softmax) is None
    from .attend.triton import supported

    return supported(windows, softmax) is None
