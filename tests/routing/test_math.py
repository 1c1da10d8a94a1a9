"""Squash, length, and the ends of the softmaxes over a child's parents. Values of those, and the Gaussian parents of em
and heinsen: test_contract.py, and convolutions in nn/test_capsules.py."""


import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from flashcaps.kernels.votes import covered
from flashcaps.routing.math import OverPositions, length, masked, squash

from ..conftest import TOLERANCE, assert_near
from . import oracles

DTYPES = list(TOLERANCE)
number = st.floats(-1e4, 1e4, allow_nan=False, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-6 else 0.0)
vectors = st.lists(number, min_size=1, max_size=6)


# ---- squash and length


@pytest.mark.parametrize("function", [squash, length])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_at_zero_with_finite_gradients(dtype: torch.dtype, function) -> None:
    x = torch.zeros(3, 4, dtype=dtype)
    x[1] = 0.5  # a neighbour that is not zero
    x.requires_grad_()
    y = function(x)
    y.sum().backward()
    assert torch.equal(y[0], torch.zeros_like(y[0]))
    assert x.grad.isfinite().all()
    assert torch.equal(x.grad[0], torch.zeros_like(x.grad[0]))
    assert (x.grad[1] != 0).all()
    assert y.dtype == x.grad.dtype == dtype


def test_squash_keeps_small_vectors() -> None:
    """No constant is added to the norm: at n = 1e-6 the length is n^2, not n^2 shrunk by an epsilon."""
    s = torch.tensor([6e-7, 8e-7], dtype=torch.float64)
    assert length(squash(s)).item() == pytest.approx(1e-12, rel=1e-9)


@given(vectors)
def test_squash_agrees_with_oracle(s: list[float]) -> None:
    assert_near(squash(torch.tensor(s, dtype=torch.float64)), oracles.squash(s))
    assert_near(length(torch.tensor(s, dtype=torch.float64)), oracles.norm(s))


@given(vectors, st.sampled_from(DTYPES))
def test_squash_keeps_direction_and_length_at_most_one(s: list[float], dtype: torch.dtype) -> None:
    x = torch.tensor(s, dtype=dtype)
    v = squash(x)
    assert v.dtype == dtype
    assert v.isfinite().all()
    assert v.double().norm() <= 1 + torch.finfo(dtype).eps
    n, m = x.double().norm(), v.double().norm()
    if m > 0.01:  # below it, half precision loses direction to rounding
        assert_near(v.double() / m, x.double() / n, 4 * torch.finfo(dtype).eps)


def test_squash_along_any_axis() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    assert_near(squash(x, dim=1), squash(x.transpose(1, 2)).transpose(1, 2))
    assert_near(length(x, dim=1), length(x.transpose(1, 2)))
    assert length(x, dim=0, keepdim=True).shape == (1, 3, 4)


@pytest.mark.parametrize("shape", [(3, 4), (2, 1), (1,), (0, 3)])
def test_squash_and_length_gradients(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert gradcheck(squash, x)
    assert gradcheck(length, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_squares_do_not_overflow(dtype: torch.dtype) -> None:
    x = torch.full((8,), 1e4, dtype=dtype)  # its sum of squares is 8e8
    assert_near(length(squash(x)), 1.0)
    assert_near(length(x), oracles.norm(x.tolist()))


# ---- softmaxes


@pytest.mark.parametrize("leaky", [False, True])
def test_over_positions_survives_large_logits(leaky: bool) -> None:
    logits = (1e4 * torch.randn(6, 4, 2)).requires_grad_()
    c = OverPositions(covered(3, 4, 2, 1), 12)(logits, leaky=leaky)
    c.square().sum().backward()
    assert c.isfinite().all()
    assert logits.grad.isfinite().all()


def test_over_positions_with_children_outside_the_mask() -> None:
    """A child masked from every parent is coupled to nobody, and the others do not notice."""
    mask = torch.ones(4, 2, dtype=torch.bool)
    mask[:, 1] = False
    c = masked(OverPositions(covered(3, 3, 2, 1), 9), mask)(torch.zeros(4, 4, 2, dtype=torch.float64))
    assert_near(c[..., 1], 0.0, 0.0)
    assert_near(c[0, :, 0], [1.0, 1 / 2, 1 / 2, 1 / 4])
