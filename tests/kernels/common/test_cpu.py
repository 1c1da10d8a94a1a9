"""Steps on a CPU: their blocks, their memory, and gradients written out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from flashcaps.kernels import votes as blocks
from flashcaps.kernels.common.cpu import Workspace, children_blocks, fits, sources_of
from flashcaps.kernels.fit.cpu import FitStep, Inputs
from flashcaps.kernels.fit.matrix import Fit
from flashcaps.kernels.votes import Votes
from flashcaps.routing.math import over_parents, weighted_moments

from ...conftest import DOUBLE, assert_near
from ...layer_cases import make_votes
from ..twins import TINY, footprint


def draw(g: int, r: int, b: int = 2) -> Votes:
    return make_votes(torch.randn(b, g, r, 2, 3, **DOUBLE), torch.randn(3, g, 3, 2, **DOUBLE))


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, **DOUBLE, requires_grad=True)


def test_a_workspace_gives_the_same_memory_again() -> None:
    (source,) = sources_of(draw(4, 1), over_parents)
    space = Workspace(source, children_blocks(source, over_parents))
    assert space("a", 2).data_ptr() == space("a", 1).data_ptr()
    assert space("a", 2).data_ptr() != space("b", 2).data_ptr()


@pytest.mark.parametrize(("first", "betas"), [("uniform", None), ("start", 3), (None, 1), (None, None)])
@pytest.mark.parametrize("budget", [blocks.BUDGET, TINY], ids=["one block", "many blocks"])
def test_fit_can_be_differentiated_twice(
    first: str | None, betas: int | None, budget: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BUDGET", budget)
    parents: tuple[Any, ...] = (None, None, None)
    if first is None:
        parents = leaf(2, 3), leaf(2, 4, 3), (torch.rand(2, 4, 3, **DOUBLE) + 0.5).requires_grad_()
    given = tuple(Inputs(
        leaf(3, 1, 2, 2, 2), leaf(3, 2, 2, 3), (torch.rand(3, 2, **DOUBLE) + 0.2).requires_grad_(),
        leaf(3, 1, 3) if first == "start" else None,
        *((None, None) if betas is None else (leaf(betas, 1, 3), leaf(betas, 1, 3))), *parents,
    ))  # fmt: skip

    def step(*tensors: Any) -> tuple[Tensor, ...]:
        found = FitStep.apply(over_parents, 0.01, *tensors)
        return found if betas is not None else found[:3]

    assert torch.autograd.gradcheck(step, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(step, given, fast_mode=True)


def test_an_example_of_closed_gates_has_the_gradient_of_the_formula() -> None:
    """Where nobody is assigned, a mean of what is assigned does not exist; weight, mean and variance do."""
    votes = draw(4, 1)
    b, i, j, _ = votes.size()
    gate = torch.rand(b, i, **DOUBLE)
    gate[0] = 0
    gate.requires_grad_()
    found = Fit(votes, gate)(1e-3)[:3]
    expected = weighted_moments(gate[..., None].expand(b, i, j) / j, votes.explicit(), 1e-3)
    weights = [torch.randn_like(x) for x in expected]
    gradients = [torch.autograd.grad(list(x), gate, weights)[0] for x in (found, expected)]
    for x, y in zip([*found, gradients[0]], [*expected, gradients[1]], strict=True):
        assert_near(x, y)


@pytest.mark.parametrize("routing", ["dynamic", "em", "heinsen"])
def test_no_copy_of_votes_survives_a_step(routing: str) -> None:
    """Only poses, weights and what belongs to parents is kept for the backward pass, whatever the iterations."""
    options = {"inverse_temperature": 0.5} if routing == "em" else {}
    few, many = (footprint(routing, "dense", "matrix", iterations=n, **options) for n in (2, 4))
    assert many.kept - few.kept < few.votes // 16  # two more iterations keep less than one coupling


def test_only_plain_tensors_of_a_cpu_fit() -> None:
    votes = draw(2, 1)
    assert fits(votes)
    assert not fits(Votes(votes.u.to("meta"), votes.weight.to("meta")))
    assert not fits(Votes(votes.u[:0], votes.weight))
    with torch._subclasses.FakeTensorMode() as mode:
        assert not fits(Votes(mode.from_tensor(votes.u), mode.from_tensor(votes.weight)))
    seen = []
    torch.func.vmap(lambda u: seen.append(fits(Votes(u, votes.weight))) or u)(votes.u[None])
    assert seen == [False]
