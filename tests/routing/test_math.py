"""Squash, length, the softmaxes over a child's parents, and the Gaussian parents of em and heinsen."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from flashcaps.routing.math import OverPositions, length, log_density, masked, over_parents, squash, weighted_moments

from ..cases import SHAPES
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


# ---- over parents


@pytest.mark.parametrize("leaky", [False, True])
def test_over_parents_agrees_with_oracle(leaky: bool) -> None:
    logits = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = [[oracles.softmax(row, leaky) for row in example] for example in logits.tolist()]
    assert_near(over_parents(logits, leaky=leaky), expected)


def test_leaky_gives_little_when_nothing_agrees() -> None:
    c = over_parents(torch.full((1, 1, 3), -30.0, dtype=torch.float64), leaky=True)
    assert c.sum() < 1e-10
    assert_near(over_parents(torch.full((1, 1, 3), 60.0, dtype=torch.float64), leaky=True).sum(-1), 1.0)


def test_masked_softmax_is_among_the_parents_a_child_has() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    logits = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    c = masked(over_parents, mask)(logits)
    for example, row in enumerate(logits.tolist()):
        first, _, last = row[0]
        one, other = oracles.softmax([first, last])
        assert_near(c[example], [[one, 0.0, other], [0.0, 0.0, 0.0]])
    c.square().sum().backward()
    assert logits.grad.isfinite().all()
    assert torch.equal(logits.grad[:, 1], torch.zeros(2, 3))


# ---- over positions


def grid(height: int, width: int, kernel: int, stride: int) -> tuple[Tensor, int, int]:
    """child (P, K), and the rows and columns of parents, of a convolution without padding."""
    rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    child = [
        [(row * stride + y) * width + column * stride + x for y in range(kernel) for x in range(kernel)]
        for row in range(rows)
        for column in range(columns)
    ]
    return torch.tensor(child), rows, columns


def keyed(x: Tensor, rows: int, columns: int, kernel: int) -> dict[tuple[int, ...], float]:
    """(B * P, T * K, J) as the oracle's dictionary."""
    n, i, j = x.shape
    p, k = rows * columns, kernel * kernel
    out = {}
    for a, c, parent in itertools.product(range(n), range(i), range(j)):
        e, place = divmod(a, p)
        t, offset = divmod(c, k)
        out[e, *divmod(place, columns), t, *divmod(offset, kernel), parent] = x[a, c, parent].item()
    return out


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("layer", [(5, 4, 3, 1), (5, 7, 3, 2), (4, 4, 2, 2), (3, 3, 3, 1), (3, 5, 1, 1), (7, 5, 2, 3)])
def test_over_positions_agrees_with_oracle(layer: tuple[int, int, int, int], leaky: bool) -> None:
    height, width, kernel, stride = layer
    child, rows, columns = grid(*layer)
    logits = torch.randn(2 * rows * columns, 2 * kernel * kernel, 3, dtype=torch.float64)
    c = OverPositions(child, height * width)(logits, leaky=leaky)
    expected = oracles.over_positions(keyed(logits, rows, columns, kernel), stride, leaky)
    actual = keyed(c, rows, columns, kernel)
    assert actual.keys() == expected.keys()
    assert max(abs(actual[key] - expected[key]) for key in actual) < 1e-10


def test_border_children_have_fewer_parents() -> None:
    """4 x 4 children, kernel 3, one parent type: a corner child has one parent, a middle one four."""
    child, *_ = grid(4, 4, 3, 1)
    c = OverPositions(child, 16)(torch.zeros(4, 9, 1, dtype=torch.float64))
    assert c[0, 0].item() == pytest.approx(1.0)  # the corner
    assert c[0, 1].item() == pytest.approx(1 / 2)  # beside it
    assert c[0, 4].item() == pytest.approx(1 / 4)  # the middle


@pytest.mark.parametrize("leaky", [False, True])
def test_over_positions_gradients(leaky: bool) -> None:
    child, *_ = grid(3, 4, 2, 1)
    softmax = OverPositions(child, 12)
    logits = torch.randn(6, 2 * 4, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: softmax(x, leaky=leaky), logits)


@pytest.mark.parametrize("leaky", [False, True])
def test_over_positions_survives_large_logits(leaky: bool) -> None:
    child, *_ = grid(3, 4, 2, 1)
    logits = (1e4 * torch.randn(6, 4, 2)).requires_grad_()
    c = OverPositions(child, 12)(logits, leaky=leaky)
    c.square().sum().backward()
    assert c.isfinite().all()
    assert logits.grad.isfinite().all()


def test_over_positions_of_an_empty_batch_and_of_strided_logits() -> None:
    child, *_ = grid(3, 4, 2, 1)
    softmax = OverPositions(child, 12)
    assert softmax(torch.randn(0, 4, 2)).shape == (0, 4, 2)
    logits = torch.randn(2, 4, 6, dtype=torch.float64).permute(2, 1, 0)
    assert_near(softmax(logits), softmax(logits.contiguous()), 0.0)


def test_over_positions_with_children_outside_the_mask() -> None:
    """A child masked from every parent is coupled to nobody, and the others do not notice."""
    child, *_ = grid(3, 3, 2, 1)
    mask = torch.ones(4, 2, dtype=torch.bool)
    mask[:, 1] = False
    c = masked(OverPositions(child, 9), mask)(torch.zeros(4, 4, 2, dtype=torch.float64))
    assert_near(c[..., 1], 0.0, 0.0)
    assert_near(c[0, :, 0], [1.0, 1 / 2, 1 / 2, 1 / 4])


# ---- Gaussian parents


@pytest.mark.parametrize("eps", [0.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_weighted_moments_agree_with_oracle(shape: tuple[int, ...], eps: float) -> None:
    votes, weight = torch.randn(shape, dtype=torch.float64), torch.rand(shape[:3], dtype=torch.float64)
    for part, actual in enumerate(weighted_moments(weight, votes, eps)):
        expected = [
            [oracles.moments(w, v, j, eps)[part] for j in range(shape[2])]
            for w, v in zip(weight.tolist(), votes.tolist(), strict=True)
        ]
        assert_near(actual, expected)


def test_no_weight_at_all_gives_mean_zero_and_the_floor() -> None:
    total, mean, variance = weighted_moments(torch.zeros(1, 3, 2), torch.randn(1, 3, 2, 2), eps=1e-5)
    assert_near(total, 0.0, 0.0)
    assert_near(mean, 0.0, 0.0)
    assert (variance == 1e-5).all()


def test_variance_is_about_the_mean() -> None:
    """Votes near 1000 with a spread of one: second moments would cancel in fp32, deviations do not."""
    votes = 1000 + torch.tensor([-1.0, 1.0, -1.0, 1.0]).view(1, 4, 1, 1)
    _, _, variance = weighted_moments(torch.ones(1, 4, 1), votes, eps=0.0)
    assert_near(variance, 1.0)


def test_log_density_agrees_with_oracle_up_to_the_constant() -> None:
    b, i, j, d = 2, 4, 3, 2
    votes, mean = torch.randn(b, i, j, d, dtype=torch.float64), torch.randn(b, j, d, dtype=torch.float64)
    variance = torch.rand(b, j, d, dtype=torch.float64) + 0.1
    actual = log_density(votes, mean, variance)
    constant = 0.5 * d * math.log(2 * math.pi)
    for e, c, p in itertools.product(range(b), range(i), range(j)):
        density = oracles.density(votes[e, c, p].tolist(), mean[e, p].tolist(), variance[e, p].tolist())
        assert actual[e, c, p].item() == pytest.approx(math.log(density) + constant, abs=1e-10)


def test_gradients_of_moments_and_densities() -> None:
    votes = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda w, v: weighted_moments(w, v, 1e-3), (weight, votes))
    mean = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    variance = (torch.rand(2, 2, 2, dtype=torch.float64) + 0.1).requires_grad_()
    assert gradcheck(log_density, (votes, mean, variance))
