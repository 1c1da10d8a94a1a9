"""The operators of a routing keep what they promise to torch.compile and to autograd."""

import pytest
import torch

from flashcaps.kernels.fit import plan
from flashcaps.kernels.fit.op import fit_routing, fit_routing_backward

from ...conftest import TOLERANCE, assert_near
from ..operator_checks import opcheck
from .cases import EPS, MADE, Case, names, operator_inputs

# Of groups, over positions, of one transform and a bias, stored, wide.
SMALL = [
    Case(2, 2, 1, 1, 1, 2, 3, betas="ij"),
    Case(1, 1, 1, 1, 1, 1, 5, positions=True, steps=1, start=True),
    Case(2, 1, 3, 1, 1, 1, 5, start=True, bias=True),
    Case(2, 2, 1, 1, 2, 1, 3, steps=1, start=True, betas="ij"),
    Case(2, 2, 1, 3, 9, 6, 3, steps=1, start=True, betas="ij", bias=True),
]


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_operators_are_registered_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "rows_at_once", lambda *_: 1)
    inputs = operator_inputs(case)
    opcheck(fit_routing, *inputs)
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
    out = fit_routing(*given)
    gradients = [torch.ones_like(x) for x in out[:-1]]
    drawn = given[:10], out, gradients, *given[10:], True
    torch.library.opcheck(fit_routing_backward.overload, drawn, test_utils=("test_schema", "test_faketensor"))


def test_operator_on_an_image_is_registered_right() -> None:
    u, gate = torch.randn(1, 2, 2, 3, 1).permute(0, 4, 2, 3, 1), torch.rand(1, 1, 2, 3)
    weight, offset = torch.randn(5, 1, 4, 1), torch.randn(5)
    given = [x.requires_grad_() for x in (u, weight, gate, offset)]
    options = ([0.5, 0.7], True, [2, 3, 2, 1], [2, 1], EPS, [0.6, 1.0], 2)
    opcheck(fit_routing, *given[:2], None, given[2], *[None] * 4, given[3], None, *options)


@pytest.mark.parametrize("case", [MADE[13], Case(3, 1, 2, 6, 6, 6, 2, betas="ij", bias=True)], ids=names)
def test_other_gradients_are_the_same_without_that_of_the_gate(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "rows_at_once", lambda *_: 2)
    inputs = list(operator_inputs(case))

    def gradients() -> list[torch.Tensor]:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad and x is not inputs[3]]
        return list(torch.autograd.grad(fit_routing(*inputs)[1].sum(), tensors, allow_unused=True))

    expected = gradients()
    inputs[3] = inputs[3].detach()
    for a, e in zip(gradients(), expected, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert_near(a, e.double(), TOLERANCE[torch.float32].gradient)
