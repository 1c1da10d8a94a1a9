"""Dynamic routing without votes, against the reference with them."""

import pytest
import torch

from ..layer_cases import LayerCase
from .twins import Twins


class TestDynamic(Twins):
    routing = "dynamic"


@pytest.mark.parametrize("form", ["dense", "any", "conv, positions"])
def test_detach_stops_the_gradient_through_couplings(form: str) -> None:
    """Without gradient through all but the last iteration, couplings are constants of the last one."""
    case = LayerCase("dynamic", form, option=4)
    u, _ = case.draw(seed=2)
    for backend in ("reference", "matrix"):
        layer = case.build(backend)
        x = u.clone().requires_grad_()
        coupling = layer(x, coupling=True).coupling
        gradient = torch.autograd.grad(coupling.square().sum(), x, allow_unused=True)[0]
        assert gradient is None or not gradient.any()
