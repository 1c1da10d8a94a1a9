"""The Triton form of the fit compiled for a GPU, at the sizes of real layers, against float64."""

import pytest
import torch
from torch import Tensor

from flashcaps.kernels.fit.triton import TritonFit
from flashcaps.kernels.votes import Votes

from ..operator_checks import assert_right_when_replayed
from .cases import CASES, EPS, WIDE, WIDE_LAYERS, Case, assert_image_twin, assert_twin, names, run

pytestmark = pytest.mark.gpu

LAYERS = [
    Case(49, 288, 1, 4, 4, 4, 32, steps=1),
    Case(49, 288, 1, 4, 4, 4, 32),
    Case(25, 72, 1, 4, 4, 4, 32, positions=True),
    Case(3, 32, 25, 4, 5, 4, 10),
    Case(3, 1, 1297, 4, 4, 4, 64, betas="j", bias=True),
    Case(3, 1, 1297, 4, 4, 4, 64, steps=1, betas="j", bias=True),
    Case(20, 64, 1, 4, 8, 4, 5, betas="ij"),
    Case(5, 1, 1480, 1, 64, 2, 64, betas="j", bias=True),
    Case(3, 37, 1, 1, 8, 16, 33),
    Case(64, 800, 1, 4, 4, 4, 32, betas="ij", bias=True),
    Case(3, 8, 9, 4, 4, 4, 33, betas="ij", bias=True),
    *WIDE_LAYERS,
]
ALL = CASES + WIDE + LAYERS


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("case", ALL, ids=names)
def test_outputs_and_gradients(case: Case, half: bool) -> None:
    """fp32, and bf16 or fp16 in turn, whose kernels differ in how they load and store alone."""
    assert_twin(case, (torch.bfloat16, torch.float16)[ALL.index(case) % 2] if half else torch.float32, "cuda")


@pytest.mark.parametrize("case", LAYERS, ids=names)
def test_twice_gives_the_same_bits(case: Case) -> None:
    tensors = case.draw("cuda")
    one, two = (run(TritonFit, case, tensors, torch.float32) for _ in range(2))
    for name, x in one.items():
        assert torch.equal(x, two[name]), name


@pytest.mark.parametrize("over", ["types", "positions"])
def test_children_in_an_image(over: str) -> None:
    """Read where they lie, and more examples than go backward at once."""
    assert_image_twin(torch.randn(40, 32, 4, 9, 9, device="cuda").permute(0, 1, 3, 4, 2), 33, (3, 2), over)


@pytest.mark.parametrize("case", [Case(3, 16, 1, 2, 2, 2, 8), Case(7, 64, 1, 8, 8, 8, 32)], ids=names)
def test_replays_from_a_graph(case: Case) -> None:
    """Captured once, right for other inputs: nothing waits for the host, nothing is fixed at capture."""
    x = case.draw("cuda")
    u, weight, gate = x["u"].requires_grad_(), x["weight"].requires_grad_(), x["gate"]

    def step() -> tuple[Tensor, ...]:
        mean, variance, _ = TritonFit(Votes(u, weight), gate).route(case.rule(x), EPS)[-1]
        return mean, *torch.autograd.grad(mean.square().sum() + variance.sum(), [u, weight])

    assert_right_when_replayed(step, u)
