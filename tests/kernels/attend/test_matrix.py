"""Agreement and weighted sums without votes, against explicit ones."""

import pytest
import torch

from flashcaps.kernels import votes as blocks
from flashcaps.kernels.attend.matrix import Attend, uniform_over_image
from flashcaps.kernels.common.patches import gathered
from flashcaps.kernels.votes import Votes, Windows

from ...conftest import assert_near
from ...layer_cases import make_votes
from ..twins import TINY, elsewhere

SHAPES = [
    (2, 5, 1, 1, 3, 4, 2),
    (2, 1, 7, 1, 3, 4, 2),
    (3, 2, 3, 2, 3, 5, 4),
    (1, 1, 1, 1, 1, 1, 1),
    (0, 3, 2, 2, 2, 2, 2),
]


def draw(b: int, g: int, r: int, c: int, d: int, j: int, h: int) -> tuple[Votes, torch.Tensor, torch.Tensor]:
    """Votes, a query (B, J, D) and logits (I, J)."""
    double = {"dtype": torch.float64}
    votes = make_votes(torch.randn(b, g, r, c, d, **double), torch.randn(j, g, d, h, **double))
    return votes, torch.randn(b, j, c * h, **double), torch.randn(g * r, j, **double)


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("budget", [None, TINY])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("given", ["neither", "query", "logits", "shared logits", "both"])
@pytest.mark.parametrize("shape", SHAPES)
def test_attend(
    shape: tuple[int, ...], given: str, leaky: bool, budget: dict[str, int] | None, on_cpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not on_cpu:
        elsewhere(monkeypatch)
    if budget is not None:
        monkeypatch.setattr(blocks, "BUDGET", budget)
    votes, query, logits = draw(*shape)
    if given == "shared logits":
        logits = logits[0]
    v = votes.explicit()
    a = torch.zeros(v.shape[:3], dtype=torch.float64)
    if given in ("query", "both"):
        a = a + torch.einsum("bijd,bjd->bij", v, query)
    if given in ("logits", "shared logits", "both"):
        a = a + logits
    e = a.exp()
    c = e / (e.sum(-1, keepdim=True) + float(leaky))
    attend = Attend(votes, None if given in ("neither", "query") else logits, leaky)
    asked = query if given in ("query", "both") else None
    assert_near(attend(asked), torch.einsum("bij,bijd->bjd", c, v))
    assert_near(attend.couplings(asked), c)


@pytest.mark.parametrize(("rows", "stride", "side"), [(1, 1, 3), (2, 1, 4), (2, 2, 7)])
def test_even_shares_of_an_image_are_a_convolution(rows: int, stride: int, side: int) -> None:
    """In a convolution, 2 types and a kernel of 3 x 3; outputs and gradients."""
    image = torch.randn(2, 2, side, side, rows * 3, dtype=torch.float64, requires_grad=True)
    windows = Windows(image, torch.randn(4, 3, 18, 2, dtype=torch.float64, requires_grad=True), rows, 3, stride)
    even = gathered(windows).explicit().sum(1) / 4
    found = uniform_over_image(windows)
    assert_near(found, even)
    g = torch.randn_like(even)
    given = [windows.image, windows.weight]
    for a, b in zip(torch.autograd.grad(found, given, g), torch.autograd.grad(even, given, g), strict=True):
        assert_near(a, b)
