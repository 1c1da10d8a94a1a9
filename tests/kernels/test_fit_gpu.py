"""The Triton form of the fit compiled for a GPU, at the sizes of real layers, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashcaps.kernels._fit_triton import TritonFit
from flashcaps.votes import Votes

from .test_fit_triton import CASES, EPS, Case, assert_twin, names, run

pytestmark = pytest.mark.gpu

LAYERS = [
    Case(49, 288, 1, 4, 4, 4, 32, first=True),
    Case(49, 288, 1, 4, 4, 4, 32),
    Case(25, 72, 1, 4, 4, 4, 32, positions=True),
    Case(3, 32, 25, 4, 5, 4, 10),
    Case(3, 1, 1297, 4, 4, 4, 64, betas="j", bias=True),
    Case(3, 1, 1297, 4, 4, 4, 64, first=True, betas="j", bias=True),
    Case(20, 64, 1, 4, 8, 4, 5, betas="ij"),
    Case(5, 1, 1480, 1, 64, 2, 64, betas="j", bias=True),
    Case(3, 37, 1, 1, 8, 16, 33),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES + LAYERS, ids=names)
def test_outputs_and_gradients(case: Case, dtype: torch.dtype) -> None:
    assert_twin(case, dtype, "cuda")


@pytest.mark.parametrize("case", LAYERS, ids=names)
def test_twice_gives_the_same_bits(case: Case) -> None:
    tensors = case.draw("cuda")
    one, two = (run(TritonFit, case, tensors, torch.float32) for _ in range(2))
    for name, x in one.items():
        assert torch.equal(x, two[name]), name


def test_replays_from_a_graph() -> None:
    """Captured once, right for other inputs: nothing waits for the host, nothing is fixed at capture."""
    case = Case(3, 16, 1, 2, 2, 2, 8)
    x = case.draw("cuda")
    u, weight, gate = x["u"].requires_grad_(), x["weight"].requires_grad_(), x["gate"]

    def step() -> tuple[Tensor, ...]:
        fit = TritonFit(Votes(u, weight), gate)
        _, mean, variance, _ = fit(EPS)
        _, mean, variance, _ = fit(EPS, x["prior"], mean, variance)
        return mean, *torch.autograd.grad(mean.square().sum() + variance.sum(), [u, weight])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        u.copy_(torch.randn_like(u))
    graph.replay()
    for actual, expected in zip(captured, step(), strict=True):
        assert torch.equal(actual, expected)
