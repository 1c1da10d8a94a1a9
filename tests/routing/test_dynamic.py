"""Dynamic routing: `detach`; of a layer, in deploy/test_convert.py. Values against the oracle: test_contract.py."""

import itertools

import pytest
import torch
from torch import Tensor

from flashcaps.functional import dynamic_routing

from ..conftest import TOLERANCE, assert_near
from . import oracles


def votes(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _constant_logits(u: Tensor, logits: Tensor, bias: Tensor, iterations: int) -> Tensor:
    """What all but the last iteration add to the logits of the single example, from the oracle's poses."""
    (steps,) = oracles.dynamic(u.tolist(), iterations=iterations, logits=logits.tolist(), bias=bias.tolist()).steps
    added = torch.zeros_like(logits)
    for _, pose in steps[:-1]:
        for i, j in itertools.product(range(u.shape[1]), range(u.shape[2])):
            added[i, j] += oracles.dot(u[0, i, j].tolist(), pose[j])
    return added


@pytest.mark.parametrize("iterations", [1, 3])
def test_detach_stops_gradient_on_all_but_the_last_iteration(iterations: int) -> None:
    """What is left is one iteration whose logits are moved by a constant."""
    inputs = [votes(1, 3, 2, 2), votes(3, 2), votes(2, 2)]
    added, weight = _constant_logits(*inputs, iterations), votes(2, 2)
    gradients = []
    for options in ({"iterations": iterations, "detach": True}, {"iterations": 1}):
        u, logits, bias = (x.clone().requires_grad_() for x in inputs)
        moved = logits if "detach" in options else logits + added
        pose = dynamic_routing(u, logits=moved, bias=bias, **options).pose
        gradients.append(torch.autograd.grad((pose[0] * weight).sum(), (u, logits, bias)))
    for name, actual, expected in zip(("votes", "logits", "bias"), *gradients, strict=True):
        assert_near(actual, expected, TOLERANCE[torch.float64].gradient, f"gradient of {name}")
