"""EM routing without votes, against the reference with them."""

from __future__ import annotations

import pytest
import torch

from flashcaps import DenseCapsules

from ..conftest import assert_near
from .twins import Twins


class TestEM(Twins):
    routing = "em"


@pytest.mark.parametrize("backend", ["reference", "matrix"])
def test_variances_do_not_cancel_in_fp32(backend: str) -> None:
    """Votes near 100 that differ by 0.1."""
    layer = DenseCapsules("em", in_capsules=64, in_dim=1, out_capsules=1, out_dim=1, iterations=1, backend=backend)
    torch.nn.init.ones_(layer.weight)
    u = 100 + 0.1 * torch.randn(2, 64, 1)
    variance = layer(u).variance
    assert_near(variance[:, :, 0] / u.double().var(1, correction=0), 1.0, 1e-2)
