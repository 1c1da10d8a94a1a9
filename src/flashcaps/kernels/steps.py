"""Which form of the shared steps a twin takes: matrix products anywhere, Triton kernels on CUDA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..routing.contract import Step
from .attend.matrix import Attend
from .fit.matrix import Fit, Fitted

if TYPE_CHECKING:
    from .attend.triton import TritonAttend
    from .fit.triton import TritonFit


def attend_step(triton: bool) -> type[Attend] | type[TritonAttend]:
    """dynamic's and attention's step. Triton is imported when first asked for."""
    if triton:
        from .attend.triton import TritonAttend

        return TritonAttend
    return Attend


def fit_step(triton: bool) -> type[Fit] | type[TritonFit]:
    """em's and heinsen's step."""
    if triton:
        from .fit.triton import TritonFit

        return TritonFit
    return Fit


def couplings(
    fit: Fit | TritonFit, steps: list[Fitted], record: bool, coupling: bool
) -> tuple[Tensor | None, tuple[Step, ...] | None]:
    """The last iteration's, if asked for, and with `record` what each iteration did."""
    if not (record or coupling):
        return None, None
    begun = [(), *(step.parents for step in steps[:-1])]
    if not record:
        return fit.couplings(*begun[-1]), None
    history = tuple(Step(fit.couplings(*x), step.mean) for x, step in zip(begun, steps, strict=True))
    return history[-1].coupling, history
