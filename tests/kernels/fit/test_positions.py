"""Shares of a child among the places that see it, against a softmax over positions in float64."""

import pytest
import torch

from flashcaps.kernels.fit.positions import normaliser_gradient, share_gate
from flashcaps.kernels.votes import covered
from flashcaps.routing.math import Grid, OverPositions

from ...conftest import TOLERANCE, assert_near

GRIDS = [(3, 3, 2, 1), (3, 5, 3, 2), (2, 3, 1, 2), (5, 2, 2, 3)]


@pytest.mark.parametrize(("grid", "equal"), [*((grid, False) for grid in GRIDS), (GRIDS[1], True)])
def test_shares_and_their_gradients(grid: Grid, equal: bool) -> None:
    """Of any kernel and stride; the gate's gradient is added to what is there."""
    h, w, k, stride = grid
    child = covered(h, w, k, stride)
    z = 3 * torch.randn(2 * child.shape[0], 2 * k * k)
    gate, s, total = torch.rand_like(z), torch.randn_like(z), torch.randn_like(z)
    exact = [(torch.zeros_like(x) if equal and x is z else x).double().requires_grad_() for x in (z, gate)]
    expected = exact[1] * OverPositions(child, h * w)(exact[0][..., None])[..., 0]
    g_z, g_gate = torch.autograd.grad(expected, exact, s.double())
    assert_near(share_gate(gate, None if equal else z, list(grid)), expected)
    if equal:
        found = share_gate(s, None, list(grid), total.clone())
    else:
        actual, added = normaliser_gradient(z, gate, s, list(grid), True, total.clone())
        assert_near(actual, g_z, TOLERANCE[torch.float32].gradient)
        assert added is not None
        found = added
    assert_near(found, total.double() + g_gate, TOLERANCE[torch.float32].gradient)
