"""The margin loss in one kernel, in Triton's interpreter where there is no GPU, against its formula."""

import pytest
import torch
from torch import Tensor

from flashcaps.kernels.common.margin import margin_rows
from flashcaps.nn.losses import margin_loss

from ...conftest import TOLERANCE, assert_near
from ..operator_checks import opcheck


def lengths(b: int, k: int, dtype: torch.dtype) -> Tensor:
    return torch.rand(b, k).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("b", "k"), [(5, 10), (1, 1), (3, 130), (700, 10)])
@pytest.mark.parametrize("hot", ["index", "two", "soft"])
def test_loss_and_gradient(b: int, k: int, hot: str, dtype: torch.dtype) -> None:
    v = lengths(b, k, dtype)
    targets = torch.randint(k, (b,))
    if hot != "index":
        targets = torch.rand(b, k) if hot == "soft" else torch.rand(b, k) < 0.3
    exact = v.detach().double().requires_grad_()
    actual, expected = margin_rows(v, targets, 0.8, 0.2, 0.4)[0], margin_loss(
        exact, targets, present=0.8, absent=0.2, down_weight=0.4
    )
    assert_near(actual, expected, TOLERANCE[torch.float32].output)
    (g,), (e,) = torch.autograd.grad(3 * actual, v), torch.autograd.grad(3 * expected, exact)
    assert g.dtype == dtype
    assert_near(g, e, TOLERANCE[dtype].gradient)


def test_lengths_of_any_layout() -> None:
    v = torch.rand(4, 6).t().requires_grad_()
    targets = torch.randint(4, (6,))
    assert_near(margin_rows(v, targets, 0.9, 0.1, 0.5)[0], margin_loss(v.double(), targets).detach(), 2e-5)


def test_operator_is_registered_right() -> None:
    v = lengths(4, 5, torch.float32)
    opcheck(margin_rows, v, torch.randint(5, (4,)), 0.9, 0.1, 0.5)
