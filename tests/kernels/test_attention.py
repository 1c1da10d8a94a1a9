"""Inverted dot-product attention without votes, against the reference with them."""

import pytest
import torch

from ..conftest import assert_near
from ..layer_cases import LayerCase, combination
from .twins import Twins


class TestAttention(Twins):
    routing = "attention"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("form", ["dense", "shared", "conv", "conv, matrix", "conv, positions"])
def test_one_step(form: str, first: bool) -> None:
    """The first of children in an image is a convolution, unless parents compete over positions; layers in a stack go
    on from their parents' last pose, whose gradient is the same too."""
    case, results = LayerCase("attention", form), []
    for backend in ("reference", "matrix"):
        layer, u = case.build(backend), case.draw()[0].requires_grad_()
        pose = [] if first else [layer(u).pose.detach().requires_grad_()]
        routed = layer.step(u, *pose)
        by = [u, *pose, *layer.parameters()]
        results.append((routed.pose, *torch.autograd.grad(combination(routed), by)))
    for actual, expected in zip(*results, strict=True):
        assert_near(actual, expected)
