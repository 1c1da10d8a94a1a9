"""Which form of the shared steps a twin takes: matrix products anywhere, Triton kernels on CUDA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._attend import Attend
from ._fit import Fit

if TYPE_CHECKING:
    from ._attend_triton import TritonAttend
    from ._fit_triton import TritonFit


def attend_step(triton: bool) -> type[Attend] | type[TritonAttend]:
    """dynamic's and attention's step. Triton is imported when first asked for."""
    if triton:
        from ._attend_triton import TritonAttend

        return TritonAttend
    return Attend


def fit_step(triton: bool) -> type[Fit] | type[TritonFit]:
    """em's and heinsen's step."""
    if triton:
        from ._fit_triton import TritonFit

        return TritonFit
    return Fit
