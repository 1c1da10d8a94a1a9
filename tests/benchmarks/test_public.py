"""What flashcaps is measured against computes the same thing."""

from __future__ import annotations

import pytest
import torch
from benchmarks.public import PUBLIC

import flashcaps

from ..conftest import assert_near


@pytest.mark.parametrize("routing", list(PUBLIC))
@pytest.mark.parametrize("pose", ["vector", "matrix"])
def test_public_style_layer_agrees_with_the_reference(routing, pose):
    options = {} if routing == "discriminative" else {"iterations": 3}
    layer = flashcaps.DenseCapsules(
        routing, in_capsules=7, in_dim=4, out_capsules=5, out_dim=4, pose=pose, backend="reference", **options
    ).double()
    u = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
    public = PUBLIC[routing](layer).double()(u)
    ours = layer(u).pose
    assert_near(public, ours)
    weights = torch.randn_like(ours)
    assert_near(*(torch.autograd.grad((x * weights).sum(), u)[0] for x in (public, ours)))
