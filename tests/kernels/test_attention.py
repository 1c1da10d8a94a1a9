"""Inverted dot-product attention without votes, against the reference with them."""

import pytest
import torch

from ..conftest import assert_near
from ..layer_cases import LayerCase, combination
from .twins import Twins


class TestAttention(Twins):
    routing = "attention"


@pytest.mark.parametrize("form", ["conv", "conv, matrix", "conv, positions"])
def test_the_first_step(form: str) -> None:
    """Of children in an image: a convolution, unless parents compete over positions."""
    case = LayerCase("attention", form)
    u, _ = case.draw()
    results = []
    for backend in ("reference", "matrix"):
        layer, image = case.build(backend), u.clone().requires_grad_()
        routed = layer.step(image)
        given = [image, *(p for p in layer.parameters())]
        results.append((routed.pose, *torch.autograd.grad(combination(routed), given)))
    for actual, expected in zip(*results, strict=True):
        assert_near(actual, expected)


@pytest.mark.parametrize("form", ["dense", "shared", "conv", "conv, positions"])
def test_a_step_from_given_poses(form: str) -> None:
    """Layers in a stack go on from their parents' last pose; its gradient is the same too."""
    case = LayerCase("attention", form)
    u, _ = case.draw()
    results = []
    for backend in ("reference", "matrix"):
        layer = case.build(backend)
        pose = layer(u).pose.detach().clone().requires_grad_()
        routed = layer.step(u, pose)
        results.append((routed.pose, torch.autograd.grad(combination(routed), pose)[0]))
    for actual, expected in zip(*results, strict=True):
        assert_near(actual, expected)
