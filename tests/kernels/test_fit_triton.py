"""The Triton form of the fit against its definition in float64, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from flashcaps.kernels import _fit_triton as fused
from flashcaps.kernels import em, heinsen
from flashcaps.kernels._fit import Fit
from flashcaps.kernels._fit_share import listed, share_gradient, share_of
from flashcaps.kernels._fit_triton import TritonFit, stored, supported
from flashcaps.routing._math import Grid, OverPositions, Softmax, masked, over_parents
from flashcaps.votes import Votes, add_bias, covered

from ..conftest import TOLERANCE, assert_near
from .poison import poison_memory

EPS = 0.01


class Case(NamedTuple):
    """Sizes of u (B, G, R, C, d) and W (J, d, G, h), and what the fit is given besides.

    betas: "" none, "ij" one for each child and parent, "j" one for each parent, "mixed". positions: the rows are the
    4 places of a 2 x 2 output that looks at 3 x 3 places, and G is in types.
    """

    b: int
    g: int
    r: int
    c: int
    d: int
    h: int
    j: int
    first: bool = False
    start: bool = False
    betas: str = ""
    positions: bool = False
    bias: bool = False

    def softmax(self, device: str) -> Softmax:
        child = covered(3, 3, 2, 1, torch.device(device))
        return OverPositions(child, 9, (3, 3, 2, 1)) if self.positions else over_parents

    def draw(self, device: str) -> dict[str, Tensor]:
        b, g = (4 * self.b, 4 * self.g) if self.positions else (self.b, self.g)
        i, j, dim = g * self.r, self.j, self.c * self.h
        x = {
            "u": torch.randn(b, g, self.r, self.c, self.d),
            "weight": torch.randn(j, self.d, g, self.h),
            "gate": torch.rand(b, i),
        }
        x["gate"][0] = 0  # an example of which nothing is there
        if self.bias:
            x["bias"] = torch.randn(j, self.c, 1, self.h)
        if self.start:
            x["start"] = torch.randn(i, j)
        if self.betas:
            x["use"] = torch.randn(j) if self.betas == "j" else torch.randn(i, j)
            x["ignore"] = torch.randn(i, j) if self.betas == "ij" else torch.randn(j)
        if not self.first:
            x |= {"prior": torch.randn(b, j), "mean": torch.randn(b, j, dim), "variance": torch.rand(b, j, dim) + 0.5}
        return {name: y.to(device) for name, y in x.items()}


CASES = [
    Case(2, 5, 1, 2, 2, 2, 5, first=True),
    Case(2, 5, 1, 2, 2, 2, 5),
    Case(2, 3, 1, 2, 2, 3, 7, betas="ij"),
    Case(3, 3, 1, 1, 2, 3, 5, first=True, start=True, betas="ij"),
    Case(2, 1, 7, 2, 3, 2, 7, betas="j"),
    Case(2, 1, 7, 2, 3, 2, 7, first=True, betas="j"),
    Case(2, 2, 3, 2, 2, 1, 9, betas="mixed"),
    Case(2, 2, 3, 2, 2, 1, 9, first=True, start=True),
    Case(1, 1, 1, 1, 1, 1, 1, betas="j"),
    Case(1, 1, 1, 1, 1, 1, 5, first=True),
    Case(3, 1, 5, 1, 9, 2, 3, betas="j"),
    Case(2, 3, 1, 2, 9, 2, 5, first=True, start=True, betas="ij"),
    Case(1, 1, 1, 2, 2, 2, 5, positions=True),
    Case(1, 2, 1, 1, 1, 2, 3, positions=True, betas="mixed"),
    Case(1, 1, 1, 1, 2, 2, 5, positions=True, first=True, start=True, betas="ij"),
    Case(1, 1, 1, 1, 2, 2, 5, positions=True, first=True),
    Case(1, 1, 1, 1, 9, 1, 3, positions=True),
    Case(2, 1, 7, 2, 2, 2, 7, betas="j", bias=True),
    Case(3, 1, 7, 2, 3, 2, 7, first=True, betas="j", bias=True),
    Case(2, 1, 3, 1, 2, 1, 9, first=True, start=True, bias=True),
    Case(2, 1, 5, 2, 9, 2, 3, betas="j", bias=True),
]


def names(case: Case) -> str:
    flags = [name for name in ("first", "start", "positions", "bias") if getattr(case, name)]
    return "-".join(["x".join(map(str, case[:7])), *flags, *([case.betas] if case.betas else [])])


def run(kind: type, case: Case, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs of a fit, and the gradient of a fixed combination of them by every tensor."""
    device = tensors["u"].device
    x = {name: y.to(dtype).requires_grad_() for name, y in tensors.items()}
    betas = (x["use"], x["ignore"]) if case.betas else None
    votes, more = Votes(x["u"], x["weight"]), {}
    if case.bias:
        votes, more = (votes, {"bias": x["bias"]}) if kind is TritonFit else (add_bias(votes, x["bias"]), {})
    fit = kind(votes, x["gate"], start=x.get("start"), betas=betas, softmax=case.softmax(str(device)), **more)
    parents = () if case.first else (x["prior"], x["mean"], x["variance"])
    out = dict(zip(("total", "mean", "variance", "score"), fit(EPS, *parents), strict=True))
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for y in out.values():
        weight = torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=device).sin().view(y.shape)
        loss = loss + (weight * y.double()).sum()
    used = {name: y for name, y in x.items() if not (name == "start" and parents)}
    gradients = torch.autograd.grad(loss, list(used.values()))
    return {**out, **{f"gradient of {name}": y for name, y in zip(used, gradients, strict=True)}}


def assert_twin(case: Case, dtype: torch.dtype, device: str = "cpu") -> None:
    """TritonFit in `dtype` equals Fit in float64 on the same, rounded, numbers."""
    tensors = {name: x.to(dtype) for name, x in case.draw(device).items()}
    actual, expected = run(TritonFit, case, tensors, dtype), run(Fit, case, tensors, torch.float64)
    for name, y in actual.items():
        given = name.removeprefix("gradient of ")
        assert y.dtype == (tensors[given].dtype if given in tensors and given != name else torch.float32), name
        tolerance = TOLERANCE[dtype].gradient if given != name else TOLERANCE[dtype].output
        assert_near(y, expected[name], tolerance, name)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch, "empty", "empty_like")


@pytest.mark.parametrize("case", CASES, ids=names)
def test_outputs_and_gradients(case: Case) -> None:
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[10], CASES[12]], ids=names)
def test_half_precision(case: Case) -> None:
    assert_twin(case, torch.float16)


def test_walks_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments of chunks merge, whatever their length."""
    from flashcaps.kernels import _fit_forward, _fit_gradients

    monkeypatch.setattr(_fit_forward, "walk_children", lambda source: _fit_forward.Walk(2, 4, 3))
    monkeypatch.setattr(_fit_gradients, "walk_children", lambda source: _fit_forward.Walk(1, 8, 2))
    monkeypatch.setattr(_fit_gradients, "walk_batch", lambda source: _fit_forward.Walk(4, 2, 2))
    assert_twin(Case(3, 7, 1, 2, 2, 2, 5, betas="j"), torch.float32)
    assert_twin(Case(2, 1, 7, 2, 2, 2, 5), torch.float32)


def test_variances_far_from_zero_do_not_cancel() -> None:
    """Votes near 1000 that differ by 0.01: expanded second moments in fp32 would leave nothing."""
    u = 1000 + 0.01 * torch.randn(1, 64, 1, 1, 1)
    votes = Votes(u, torch.ones(5, 1, 64, 1))
    assert not stored(votes)
    variance = TritonFit(votes, torch.ones(1, 64))(0.0)[2]
    assert_near(variance / u.double().var(correction=0), 1.0, 1e-2)


def test_couplings() -> None:
    case = Case(2, 3, 1, 2, 2, 2, 5)
    x = case.draw("cpu")
    votes, parents = Votes(x["u"], x["weight"]), (x["prior"], x["mean"], x["variance"])
    assert_near(TritonFit(votes, x["gate"]).couplings(*parents), Fit(votes, x["gate"]).couplings(*parents))


@pytest.mark.parametrize("name", ["em", "heinsen"])
def test_routing(name: str) -> None:
    """Three iterations, with gradients through all of them."""
    torch.manual_seed(3)
    x = {"u": torch.randn(2, 3, 1, 2, 2), "weight": torch.randn(3, 2, 3, 2), "a": torch.rand(2, 3)}
    x |= {"first": torch.randn(3), "second": torch.randn(3)}

    def route(dtype: torch.dtype, triton: bool = False) -> list[Tensor]:
        y = {key: value.to(dtype).requires_grad_() for key, value in x.items()}
        votes = Votes(y["u"], y["weight"])
        if name == "em":
            routed = em.em_routing(
                votes, y["a"], beta_u=y["first"], beta_a=y["second"], inverse_temperature=(0.2, 0.4, 0.6), eps=EPS,
                triton=triton,
            )
        else:
            betas = {"beta_use": y["first"], "beta_ignore": y["second"]}
            routed = heinsen.heinsen_routing(votes, y["a"], **betas, eps=EPS, triton=triton)
        assert routed.activation is not None
        loss = (routed.pose * torch.linspace(-1, 1, 4, dtype=dtype)).sum() + routed.activation.square().sum()
        return [routed.pose, routed.activation, *torch.autograd.grad(loss, list(y.values()))]

    expected = route(torch.float64)
    for actual, value in zip(route(torch.float32, triton=True), expected, strict=True):
        assert_near(actual, value, TOLERANCE[torch.float32].gradient)


GRIDS = [(3, 3, 2, 1), (5, 6, 3, 2), (4, 3, 1, 2), (7, 5, 2, 3), (4, 4, 3, 1)]


@pytest.mark.parametrize("grid", GRIDS)
def test_shares(grid: Grid) -> None:
    """A softmax over the places that see a child, of any kernel and stride, and its gradient."""
    h, w, k, stride = grid
    child = covered(h, w, k, stride)
    z = (3 * torch.randn(2 * child.shape[0], 3 * k * k)).requires_grad_()
    exact = z.detach().double().requires_grad_()
    q, expected = share_of(z, listed(grid)), OverPositions(child, h * w)(exact[..., None])[..., 0]
    assert_near(q, expected)
    g = torch.randn_like(q)
    (actual,), (e,) = torch.autograd.grad(q, z, g), torch.autograd.grad(expected, exact, g.double())
    assert_near(actual, e, TOLERANCE[torch.float32].gradient)


def test_shares_are_registered_right() -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    z = torch.randn(8, 12, requires_grad=True)
    torch.library.opcheck(share_of, (z, [3, 3, 2, 1]), test_utils=checks)
    torch.library.opcheck(share_gradient, (z.detach(), z.detach(), [3, 3, 2, 1]), test_utils=checks[:1])


def operator_inputs(case: Case) -> tuple[Any, ...]:
    x = case.draw("cpu")
    given = {name: y.requires_grad_() for name, y in x.items()}
    source = fused.source_of(Votes(given["u"], given["weight"]))
    source = type(source)(*(None if y is None else y.detach() for y in source))
    for y in source[:2]:
        if y is not None:
            y.requires_grad_()
    parents = [] if case.first else [given["prior"].detach().requires_grad_()]
    for name in () if case.first else ("mean", "variance"):
        parents.append(given[name].detach().transpose(1, 2).contiguous().requires_grad_())
    softmax = case.softmax("cpu")
    grid = listed(softmax.grid) if isinstance(softmax, OverPositions) else []
    if case.bias:
        source = source._replace(bias=torch.randn(case.c * case.h, case.j, requires_grad=True))
    return *source, given["gate"], None, parents, grid, EPS


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[10], CASES[12], CASES[17]], ids=names)
def test_operator_is_registered_right(case: Case) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(fused.fit_step, operator_inputs(case), test_utils=checks)


def test_compiles_in_one_graph() -> None:
    case = Case(2, 3, 1, 2, 2, 2, 5)
    x = case.draw("cpu")

    def route(u: Tensor, weight: Tensor) -> Tensor:
        fit = TritonFit(Votes(u, weight), x["gate"])
        total, mean, variance, _ = fit(EPS)
        return fit(EPS, total.log(), mean, variance)[1]

    leaves = [x["u"].requires_grad_(), x["weight"].requires_grad_()]
    x["gate"] += 0.1
    expected = route(*leaves)
    actual = torch.compile(route, fullgraph=True, backend="aot_eager")(*leaves)
    assert_near(actual, expected.double())
    gradients = (torch.autograd.grad(y.square().sum(), leaves) for y in (actual, expected))
    for a, e in zip(*gradients, strict=True):
        assert_near(a, e.double(), TOLERANCE[torch.float32].gradient)


def test_keeps_no_votes_nor_couplings() -> None:
    """The graph keeps tensors of children and of parents, none of both."""
    b, i, j = 3, 40, 24
    u, weight = torch.randn(b, 1, i, 2, 2, requires_grad=True), torch.randn(j, 2, 1, 2, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        fit = TritonFit(Votes(u, weight), torch.rand(b, i))
        total, mean, variance, _ = fit(EPS)
        fit(EPS, total.log(), mean, variance)
    assert 0 < max(kept) < b * i * j


def test_says_what_it_cannot_do() -> None:
    def votes(c: int = 1, d: int = 2, h: int = 2, j: int = 9, dtype: torch.dtype = torch.float32) -> Votes:
        return Votes(torch.zeros(1, 3, 1, c, d, dtype=dtype), torch.zeros(j, d, 3, h, dtype=dtype))

    assert supported(votes(), over_parents) is None
    assert supported(votes(), OverPositions(covered(2, 2, 1, 1), 4, (2, 2, 1, 1))) is None
    assert "grid" in str(supported(votes(), OverPositions(covered(2, 2, 1, 1), 4)))
    assert "float64" in str(supported(votes(dtype=torch.float64)))
    assert "softmax" in str(supported(votes(), masked(over_parents, torch.ones(3, 9, dtype=torch.bool))))
    assert "65" in str(supported(votes(h=65)))
    assert "multiply-adds" in str(supported(votes(d=20, h=20)))
    assert "empty" in str(supported(votes(j=0)))
    with pytest.raises(ValueError, match="backend='matrix'"):
        TritonFit(votes(h=65), torch.ones(1, 3))


@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[12], CASES[17]], ids=names)
def test_more_than_one_child_to_a_lane(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashcaps.kernels import _fit_forward, _fit_gradients

    monkeypatch.setattr(_fit_forward, "LANES", 2)
    monkeypatch.setattr(_fit_forward, "CHILDREN", {"normaliser": 2, "child_sums": 4, "child_gradients": 2})
    monkeypatch.setattr(_fit_gradients, "LANES", 2)
    monkeypatch.setattr(_fit_gradients, "GROUPS", 2)
    assert_twin(case, torch.float32)
