"""The Triton form of the fit against its definition in float64, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from flashcaps.kernels.fit.ops import fit_routing
from flashcaps.kernels.fit.share import listed, share_gradient, share_of
from flashcaps.kernels.fit.source import LANES, Walk, _walk_batch, stored
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flashcaps.kernels import em, heinsen
from flashcaps.kernels.fit import walk_back as _fit_return
from flashcaps.kernels.fit.matrix import Fit, Rule
from flashcaps.kernels.fit.triton import TritonFit, supported
from flashcaps.routing.math import Grid, OverPositions, Softmax, masked, over_parents
from flashcaps.routing.votes import Votes, Windows, add_bias, covered, patches

from ..conftest import TOLERANCE, assert_near
from .poison import poison_memory

EPS = 0.01


class Case(NamedTuple):
    """Sizes of u (B, G, R, C, d) and W (J, d, G, h), and what the fit is given besides.

    betas: "" none, and logits are em's; else heinsen's, "ij" one for each child and parent, "j" one for each parent,
    "mixed". positions: the rows are the 4 places of a 2 x 2 output that looks at 3 x 3 places, and G is in types.
    first: one iteration alone, else two.
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

    def rule(self, x: dict[str, Tensor]) -> Rule:
        scales = (0.3,) if self.first else (0.3, 0.5)
        if self.betas:
            return Rule((1.0,) * len(scales))
        return Rule(scales, x["offset"], x["cost"], spread=True)

    def draw(self, device: str) -> dict[str, Tensor]:
        b, g = (4 * self.b, 4 * self.g) if self.positions else (self.b, self.g)
        i, j = g * self.r, self.j
        x = {
            "u": torch.randn(b, g, self.r, self.c, self.d),
            "weight": torch.randn(j, self.d, g, self.h) / self.d**0.5,  # votes are of one size, however wide poses are
            "gate": torch.rand(b, i),
        }
        x["gate"][0] = 0  # an example of which nothing is there
        if self.bias:
            x["bias"] = torch.randn(j, self.c, g, self.h)
        if self.start:
            x["start"] = torch.randn(i, j)
        if self.betas:
            x["use"] = torch.randn(j) if self.betas == "j" else torch.randn(i, j)
            x["ignore"] = torch.randn(i, j) if self.betas == "ij" else torch.randn(j)
        else:
            x |= {"offset": torch.randn(j), "cost": torch.randn(j)}
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
    Case(2, 5, 1, 2, 2, 2, 5, betas="ij", bias=True),
    Case(2, 2, 3, 2, 2, 1, 9, betas="mixed", bias=True),
    Case(2, 3, 1, 2, 9, 2, 5, start=True, betas="ij", bias=True),
    Case(1, 1, 1, 1, 2, 2, 5, positions=True, betas="ij", bias=True),
    Case(1, 2, 1, 4, 1, 5, 3),
    Case(2, 1, 3, 3, 1, 6, 5, betas="j", bias=True),
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
    steps = fit.route(case.rule(x), EPS)
    out = {f"{name} {t}": y for t, step in enumerate(steps) for name, y in step._asdict().items()}
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for y in out.values():
        weight = torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=device).sin().view(y.shape)
        loss = loss + (weight * y.double()).sum()
    gradients = torch.autograd.grad(loss, list(x.values()))
    return {**out, **{f"gradient of {name}": y for name, y in zip(x, gradients, strict=True)}}


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
    from flashcaps.kernels.fit import forward as _fit_forward
    from flashcaps.kernels.fit import gradients as _fit_gradients

    monkeypatch.setattr(_fit_forward, "walk_children", lambda source, registers: Walk(2, 2, 4, 2, 1))
    monkeypatch.setattr(_fit_gradients, "walk_children", lambda source, registers: Walk(1, 1, 8, 2, 1))
    monkeypatch.setattr(_fit_gradients, "walk_batch", lambda source, registers, groups, most: Walk(4, 2, 2, 1, 1))
    assert_twin(Case(3, 7, 1, 2, 2, 2, 5, betas="ij", bias=True), torch.float32)
    assert_twin(Case(3, 7, 1, 2, 2, 2, 5, first=True, start=True), torch.float32)
    assert_twin(Case(2, 1, 7, 2, 2, 2, 5), torch.float32)


@given(st.integers(1, 400), st.integers(1, 4000), st.integers(1, 70), st.integers(8, 32), st.integers(0, 9))
def test_walks_over_the_batch_miss_nothing(groups: int, length: int, j: int, resident: int, most: int) -> None:
    walk = _walk_batch(groups, length, j, resident, 1, most)
    rows, parents, chunks = walk.grid(groups, j, length)
    assert rows * walk.rows >= groups
    assert parents * walk.parents >= j
    assert chunks * walk.steps * walk.split >= length
    assert chunks <= max(most, 1), "more chunks than there is room for"
    assert walk.rows * walk.split * walk.parents == LANES * walk.warps
    assert walk.warps <= 8


def test_groups_that_read_the_same_parents_walk_together() -> None:
    """em's convolutions: 3 x 3 x 32 children to 32 parents, 245 places at once."""
    assert _walk_batch(288, 245, 32, 14, 1, 6).rows > 1


def test_variances_far_from_zero_do_not_cancel() -> None:
    """Votes near 1000 that differ by 0.01: expanded second moments in fp32 would leave nothing."""
    u = 1000 + 0.01 * torch.randn(1, 64, 1, 1, 1)
    votes = Votes(u, torch.ones(5, 1, 64, 1))
    assert not stored(votes.weight)
    variance = TritonFit(votes, torch.ones(1, 64)).route(Rule((1.0,)), 0.0)[0].variance
    assert_near(variance / u.double().var(correction=0), 1.0, 1e-2)


@pytest.mark.parametrize("case", [Case(2, 5, 1, 2, 2, 2, 5), Case(2, 5, 1, 1, 6, 2, 7)], ids=["made", "stored"])
def test_large_logits_round_but_their_gradients_do_not(case: Case) -> None:
    """Z near -900 is known to 3e-5, and couplings sum to 1 as well as that; benefits near 300 still cancel."""
    x = case.draw("cpu")
    x["offset"] -= 3000
    x["cost"] += 300
    assert stored(x["weight"]) == (case.d == 6)
    actual, expected = run(TritonFit, case, x, torch.float32), run(Fit, case, x, torch.float64)
    name = "gradient of offset"
    assert_near(actual[name], expected[name], TOLERANCE[torch.float32].gradient, name)


def test_couplings() -> None:
    case = Case(2, 3, 1, 2, 2, 2, 5)
    x = case.draw("cpu")
    votes, parents = Votes(x["u"], x["weight"]), (torch.randn(2, 5), torch.randn(2, 5, 4), torch.rand(2, 5, 4) + 0.5)
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
    x = {name: y.requires_grad_() for name, y in case.draw("cpu").items()}
    b, i = x["gate"].shape
    softmax = case.softmax("cpu")
    grid = listed(softmax.grid) if isinstance(softmax, OverPositions) else []
    share = torch.rand(b, i, requires_grad=True) if grid else None
    offset = torch.randn(b, case.j, requires_grad=True)
    scales = [0.5] if case.first else [0.5, 0.7]
    rest = (x.get("start"), x.get("use"), offset, x.get("cost"))
    return x["u"], x["weight"], x.get("bias"), x["gate"], share, *rest, scales, not case.betas, grid, [], EPS


OPERATED = [CASES[0], CASES[2], CASES[11], CASES[12], Case(2, 1, 7, 2, 2, 2, 7, bias=True)]


@pytest.mark.parametrize("case", OPERATED, ids=names)
def test_operator_is_registered_right(case: Case) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(fit_routing, operator_inputs(case), test_utils=checks)


def test_operator_on_an_image_is_registered_right() -> None:
    u, gate = torch.randn(1, 2, 2, 3, 1).permute(0, 4, 2, 3, 1), torch.rand(1, 1, 2, 3)
    weight, offset = torch.randn(5, 1, 4, 1), torch.randn(2, 5)
    given = [x.requires_grad_() for x in (u, weight, gate, offset)]
    inputs = (*given[:2], None, given[2], None, None, None, given[3], None, [0.5, 0.7], True, [2, 3, 2, 1], [2, 1], EPS)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(fit_routing, inputs, test_utils=checks)


def test_compiles_in_one_graph() -> None:
    case = Case(2, 3, 1, 2, 2, 2, 5)
    x = case.draw("cpu")

    def route(u: Tensor, weight: Tensor) -> Tensor:
        return TritonFit(Votes(u, weight), x["gate"]).route(case.rule(x), EPS)[-1].mean

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
        TritonFit(Votes(u, weight), torch.rand(b, i)).route(Rule((1.0, 1.0)), EPS)
    assert 0 < max(kept) < b * i * j


def run_image(image: Tensor, x: dict[str, Tensor], window: tuple[int, int], over: str, kernels: bool) -> list[Tensor]:
    """Parents after two iterations on an image's patches, and the gradients of its poses and of all in x."""
    kernel, stride = window
    y = {name: value.detach().clone().requires_grad_() for name, value in {"image": image, **x}.items()}
    h, w = image.shape[2:4]
    grid = OverPositions(covered(h, w, kernel, stride, image.device), h * w, (h, w, kernel, stride))
    u, gate = (patches(z, kernel, stride).flatten(0, 2) for z in (y["image"], y["gate"][..., None]))
    gate = gate[..., 0]
    votes: Votes | Windows = Votes(u.unflatten(-1, (2, 2))[:, :, None], y["weight"])
    if kernels:
        votes, gate = Windows(y["image"], y["weight"], 2, kernel, stride), y["gate"]
    rule = Rule((0.5, 0.7), y["offset"], y["cost"], spread=True)
    fit: Any = TritonFit if kernels else Fit
    out = fit(votes, gate, softmax=grid if over == "positions" else over_parents).route(rule, EPS)[-1]
    loss = (out.mean * torch.linspace(-1, 1, 4, dtype=out.mean.dtype, device=image.device)).sum()
    loss = loss + out.variance.sum() + out.logit.cos().sum()
    return [*out, *torch.autograd.grad(loss, list(y.values()))]


@pytest.mark.parametrize(("window", "over"), [((2, 1), "positions"), ((2, 2), "types")])
def test_children_in_an_image(window: tuple[int, int], over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read where they lie, one example after the other on the way back, whatever the layout of the image."""
    monkeypatch.setattr(_fit_return, "examples_at_once", lambda *sizes: 1)
    i, j = 2 * window[0] ** 2, 5
    image = torch.randn(2, 2, 4, 3, 4).permute(0, 1, 3, 4, 2)
    x = {"weight": torch.randn(j, 2, i, 2), "gate": torch.rand(2, 2, 3, 4)}
    x |= {"offset": torch.randn(j), "cost": torch.randn(j)}
    exact = {name: y.double() for name, y in x.items()}
    expected = run_image(image.double(), exact, window, over, kernels=False)
    for a, e in zip(run_image(image, x, window, over, kernels=True), expected, strict=True):
        assert_near(a, e, TOLERANCE[torch.float32].gradient)


def test_says_what_it_cannot_do() -> None:
    def votes(c: int = 1, d: int = 2, h: int = 2, j: int = 9, dtype: torch.dtype = torch.float32) -> Votes:
        return Votes(torch.zeros(1, 3, 1, c, d, dtype=dtype), torch.zeros(j, d, 3, h, dtype=dtype))

    assert supported(votes(), over_parents) is None
    assert supported(votes(), OverPositions(covered(2, 2, 1, 1), 4, (2, 2, 1, 1))) is None
    assert "grid" in str(supported(votes(), OverPositions(covered(2, 2, 1, 1), 4)))
    assert "float64" in str(supported(votes(dtype=torch.float64)))
    assert "softmax" in str(supported(votes(), masked(over_parents, torch.ones(3, 9, dtype=torch.bool))))
    assert "65" in str(supported(votes(h=65)))
    assert supported(votes(c=8, d=8, h=8)) is None
    assert supported(votes(c=1, d=512, h=64)) is None
    assert "patches" in str(supported(Windows(torch.zeros(1, 3, 1, 1, 36), torch.zeros(9, 6, 3, 6), 6, 1, 1)))
    assert "empty" in str(supported(votes(j=0)))
    with pytest.raises(ValueError, match="backend='matrix'"):
        TritonFit(votes(h=65), torch.ones(1, 3))


@pytest.mark.parametrize("case", [CASES[10], CASES[16], CASES[23]], ids=names)
def test_stored_votes_a_few_examples_at_a_time(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fit_return, "VOTES", 0)
    assert_twin(case, torch.float32)


@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[12], CASES[17]], ids=names)
def test_more_than_one_child_to_a_lane(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashcaps.kernels.fit import forward as _fit_forward
    from flashcaps.kernels.fit import gradients as _fit_gradients
    from flashcaps.kernels.fit import source as _fit_source

    for module in (_fit_source, _fit_forward):
        monkeypatch.setattr(module, "LANES", 2)
    monkeypatch.setattr(_fit_forward, "CHILDREN", {"normaliser": 2, "child_sums": 4, "child_gradients": 2})
    monkeypatch.setattr(_fit_gradients, "LANES", 2)
    monkeypatch.setattr(_fit_gradients, "GROUPS", 2)
    assert_twin(case, torch.float32)
