"""An operator whose gradient is an operator: absent tensors, stacked gradients, and outputs that are kept."""

import subprocess
import sys

import torch
from torch import Tensor

from flashcaps.kernels.common.operators import gradient_of, operator


@operator("scaled_for_test")
def scaled(x: Tensor, shift: Tensor | None, a: Tensor, b: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """factor (x a + b) + shift, and x a."""
    product = x * a
    return factor * (product + b) + (0 if shift is None else shift), product


scaled.register_fake(lambda x, shift, a, b, factor: (torch.empty_like(x), torch.empty_like(x)))


@gradient_of(scaled, tensors=4, fake=lambda grad, given, *_: [grad, grad, grad.new_empty(2, *given[2].shape)])
def scaled_backward_for_test(
    grad: Tensor, given: list[Tensor | None], kept: list[Tensor], factor: float
) -> list[Tensor | None]:
    x, shift, a, _ = given
    assert x is not None
    assert torch.equal(kept[0], x * a)
    of_both = torch.stack([(grad * x).sum(0), grad.sum(0)])
    return [factor * grad * a, None if shift is None else grad.clone(), factor * of_both]


def test_gradients_come_to_their_tensors() -> None:
    for shifted in (False, True):
        x, shift, a, b = (torch.randn(*n, requires_grad=True) for n in ((3, 2), (3, 2), (2,), (2,)))
        leaves = [x, shift, a, b] if shifted else [x, a, b]
        actual = scaled(x, shift if shifted else None, a, b, 0.5)[0]
        expected = 0.5 * (x * a + b) + (shift if shifted else 0)
        grads = (torch.autograd.grad(y.square().sum(), leaves) for y in (actual, expected))
        for g, e in zip(*grads, strict=True):
            torch.testing.assert_close(g, e)


def test_outputs_beside_the_first_have_no_gradient() -> None:
    x, a, b = (torch.randn(2, requires_grad=True) for _ in range(3))
    found = torch.autograd.grad(scaled(x, None, a, b, 1.0)[1].sum(), [x, a], allow_unused=True)
    assert found == (None, None)


EAGER = """
import sys
import torch
from torch import Tensor
from tests.kernels.common.test_operators import scaled
from flashcaps.kernels.common.operators import operator

@operator("count_for_test", ("total",))
def count(x: Tensor, total: Tensor) -> Tensor:
    total += 1
    return x.sum()

total, x, a = torch.zeros(()), torch.ones(3, 2), torch.ones(2, requires_grad=True)
for _ in range(3):
    (scaled(x, None, a, a, 1.0)[0].sum() + count(x, total)).backward()
assert total == 3 and total._version == 6  # torch counts the sum in place, too
assert "torch._dynamo" not in sys.modules
"""


def test_eager_calls_count_changes_and_import_no_compiler() -> None:
    """Which takes seconds, of the first calls of a process."""
    done = subprocess.run([sys.executable, "-c", EAGER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
