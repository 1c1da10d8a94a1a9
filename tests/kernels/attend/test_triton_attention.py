"""All iterations of attention in one operator, dense and in an image, against the reference in float64."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from flashcaps import ConvCapsules
from flashcaps.kernels.attend import plan
from flashcaps.kernels.attend.triton import attention_poses, supported
from flashcaps.kernels.common import patches as _patches
from flashcaps.kernels.votes import Votes, Windows, group, patches
from flashcaps.routing.attention import attention_routing

from ..common.test_norm import channels_first, channels_last, contiguous, gaps
from ..operator_checks import opcheck, poison_memory
from .steps import errors_of, relative, small_tiles


class Case(NamedTuple):
    """Layout of the image, or None: dense; its (B, T, H, W) or (B, I); kernel, stride; J, C, d, h."""

    layout: Any
    children: tuple[int, ...]
    window: tuple[int, int]
    parents: tuple[int, int, int, int]


def by_types(b: int, t: int, h: int, w: int, d: int) -> Tensor:
    """As a convolutional layer leaves its parents: types of one place side by side."""
    return torch.randn(b, h, w, t, d).permute(0, 3, 1, 2, 4)


CASES = {
    "small": Case(contiguous, (2, 1, 3, 3), (2, 1), (2, 1, 2, 3)),
    "dense": Case(None, (3, 7), (1, 1), (3, 1, 4, 5)),
    "dense, matrices": Case(None, (5, 3), (1, 1), (2, 2, 3, 3)),
    "stride 2": Case(contiguous, (2, 2, 5, 5), (3, 2), (3, 2, 2, 2)),
    "stride 1": Case(contiguous, (3, 2, 3, 4), (2, 1), (2, 1, 3, 5)),
    "of a layer below": Case(by_types, (2, 3, 4, 3), (2, 1), (2, 2, 2, 3)),
    "channels first": Case(channels_first, (2, 2, 3, 3), (2, 1), (2, 1, 4, 4)),
    "channels last": Case(channels_last, (2, 2, 3, 3), (2, 1), (2, 1, 4, 4)),
    "gaps": Case(gaps, (1, 2, 4, 4), (2, 2), (3, 1, 3, 3)),
    "one place": Case(contiguous, (3, 2, 2, 2), (2, 1), (2, 2, 2, 2)),
    "points": Case(contiguous, (2, 3, 2, 3), (1, 2), (2, 1, 3, 4)),
}


STARTS = ["dense, matrices", "stride 2"], ["nothing", "pose", "no norm"], [1, 3]


class Drawn(NamedTuple):
    """u or the image, weight, pose or None, LayerNorm's scale and shift or None."""

    u: Tensor
    weight: Tensor
    pose: Tensor | None
    gamma: Tensor | None
    beta: Tensor | None

    def of(self, case: Case) -> Votes | Windows:
        if case.layout is None:
            return Votes(self.u, self.weight)
        return Windows(self.u, self.weight, case.parents[1], *case.window)


def draw(case: Case, given: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Drawn:
    (j, c, d, h), k = case.parents, case.window[0]
    if case.layout is None:
        u = torch.randn(case.children[0], case.children[1], 1, c, d)
    else:
        u = case.layout(*case.children, c * d)
    made = torch.empty_strided(u.shape, u.stride(), dtype=dtype, device=device).copy_(u).requires_grad_()
    weight = torch.randn(j, d, case.children[1] * k * k, h) * d**-0.5
    b = Drawn(made, weight, None, None, None).of(case).size()[0]
    pose = torch.randn(b, j, c * h) if given != "nothing" else None
    norm = () if given == "no norm" else (torch.randn(c * h), torch.randn(c * h))
    rest = [None if x is None else x.to(device, dtype).requires_grad_() for x in (weight, pose, *norm)]
    return Drawn(made, *rest, *([None] * (4 - len(rest))))  # type: ignore[arg-type]


def fused(drawn: Drawn, case: Case, iterations: int) -> Tensor:
    return attention_poses(
        drawn.of(case), drawn.pose, iterations, 0.3, drawn.gamma is not None, drawn.gamma, drawn.beta
    )


def explicit(drawn: Drawn, case: Case, iterations: int) -> Tensor:
    u, pose = drawn.u, drawn.pose
    if case.layout is not None:
        u = patches(u, *case.window).flatten(0, 2)
        u = group(u, u.shape[1], case.parents[1])
    votes, norm = Votes(u, drawn.weight).explicit(), drawn.gamma is not None
    for _ in range(iterations):
        pose = attention_routing(votes, pose, scale=0.3, norm=norm, weight=drawn.gamma, bias=drawn.beta).pose
    assert pose is not None
    return pose


def attention_errors(drawn: Drawn, case: Case, iterations: int) -> list[float]:
    """||x - reference|| / ||reference|| of the pose and of every gradient."""
    return errors_of(*(lambda *x, of=of: of(Drawn(*x), case, iterations) for of in (fused, explicit)), drawn)


def patches_of(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """Gradients of so many elements of patches at a time, or of one example."""
    monkeypatch.setattr(plan, "PATCHES", 0.0)
    monkeypatch.setattr(plan, "LEAST", elements)
    plan.examples.cache_clear()


class TestInterpreted:
    """Runs where kernels run on the CPU, one program after another."""

    __test__ = not torch.cuda.is_available()

    @pytest.fixture(autouse=True)
    def _poison(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        poison_memory(monkeypatch, "empty", "empty_strided")
        yield
        plan.examples.cache_clear()

    @pytest.mark.parametrize(
        ("name", "given", "iterations"), [*((name, "nothing", 2) for name in CASES), *product(*STARTS)]
    )
    def test_poses_and_gradients(self, name: str, given: str, iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
        patches_of(monkeypatch, 1)  # example at a time
        far = attention_errors(draw(CASES[name], given), CASES[name], iterations)
        assert max(far) < 1e-4, far

    @pytest.mark.parametrize(("name", "full"), [("dense, matrices", 5), ("small", 1), ("small", 1000)])
    def test_many_tiles(self, name: str, full: int, monkeypatch: pytest.MonkeyPatch) -> None:
        small_tiles(monkeypatch, full)
        far = attention_errors(draw(CASES[name], "nothing"), CASES[name], 2)
        assert max(far) < 1e-4, far

    def test_weights_copied_for_many_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "ROWS", 1)
        far = attention_errors(draw(CASES["stride 2"], "nothing"), CASES["stride 2"], 2)
        assert max(far) < 1e-4, far

    @pytest.mark.parametrize("name", ["dense", "stride 2"])
    def test_fp16(self, name: str) -> None:
        far = attention_errors(draw(CASES[name], "pose", torch.float16), CASES[name], 2)
        assert max(far) < 2e-2, far

    def test_patches_of_a_few_examples_fold_alike(self, monkeypatch: pytest.MonkeyPatch) -> None:
        case = CASES["stride 1"]
        drawn, found = draw(case, "pose"), []
        for elements in (1, 1 << 20):
            patches_of(monkeypatch, elements)
            found.append(torch.autograd.grad(fused(drawn, case, 2).sin().sum(), drawn.u)[0])
        few, whole = found
        assert max(relative([few], [whole])) < 1e-6  # products of other shapes round differently on some CPUs

    @pytest.mark.parametrize("name", ["dense", "stride 2"])
    def test_an_empty_batch(self, name: str) -> None:
        case = CASES[name]
        drawn = draw(case._replace(children=(0, *case.children[1:])), "pose")
        out = fused(drawn, case, 2)
        grads = torch.autograd.grad(out.sum(), drawn)
        assert out.shape[0] == 0
        assert all(g.shape == x.shape and not g.count_nonzero() for g, x in zip(grads, drawn, strict=True))

    @pytest.mark.parametrize(("name", "given"), [("dense", "nothing"), ("gaps", "pose"), ("small", "no norm")])
    def test_opcheck(self, name: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        case = CASES[name]
        drawn = draw(case, given)
        window = [] if case.layout is None else [case.parents[1], *case.window]
        route = torch.ops.flashcaps.route_attention.default
        opcheck(route, *drawn, window, 0.3, 2)
        plain = [None if x is None else x.detach() for x in drawn]
        p, *kept = route(*plain, window, 0.3, 2)
        backward = torch.ops.flashcaps.route_attention_backward.default
        torch.library.opcheck(backward, (torch.randn_like(p), plain, kept, window, 0.3, 2))


def layers(backend: str, **options: Any) -> list[ConvCapsules]:
    torch.manual_seed(0)
    sizes = dict(in_dim=4, out_dim=4, kernel=3, pose="matrix", iterations=2, backend=backend)
    return [
        ConvCapsules("attention", in_types=2, out_types=3, stride=2, padding=1, **sizes, **options),
        ConvCapsules("attention", in_types=3, out_types=2, **sizes, **options),
    ]


class TestLayers:
    """A convolutional layer's children stay in the image where they can."""

    __test__ = not torch.cuda.is_available()

    @staticmethod
    def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
        def gathered(*_: Any) -> Tensor:
            raise AssertionError("patches were gathered")

        monkeypatch.setattr("flashcaps.kernels.dispatch.patches", gathered)

    @pytest.mark.parametrize("gated", [False, True])
    def test_same_as_the_reference_without_a_patch(self, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(1)
        u, a, found = torch.randn(1, 2, 6, 5, 4), torch.rand(1, 2, 6, 5), []
        for backend in ("reference", "triton"):
            first, second = layers(backend)
            if backend == "triton":
                self.forbid(monkeypatch)
            x = u.clone().requires_grad_()
            out = second(first(x, a if gated else None).pose).pose
            found.append([out, *torch.autograd.grad(out.sin().sum(), [x, *first.parameters(), *second.parameters()])])
        for y, z in zip(*found, strict=True):
            torch.testing.assert_close(y, z, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("asked", [{"coupling": True}, {"record": True}, {}], ids=str)
    def test_couplings_and_activations_are_of_gathered_patches(self, asked: dict[str, bool]) -> None:
        u, a, options = torch.randn(1, 2, 6, 5, 4), torch.rand(1, 2, 6, 5), {} if asked else {"activation": True}
        both = [layers(backend, **options)[0](u, a, **asked) for backend in ("triton", "reference")]
        for ours, reference in zip(*(routed[:3] for routed in both), strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-3, atol=1e-4)

    def test_compiled_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forbid(monkeypatch)
        layer, u = layers("triton")[0], torch.randn(2, 2, 6, 5, 4, requires_grad=True)
        compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
        results = []
        for f in (compiled, layer):
            out = f(u).pose
            results.append([out, *torch.autograd.grad(out.sin().sum(), [u, *layer.parameters()])])
        for x, y in zip(*results, strict=True):
            torch.testing.assert_close(x, y)

    def test_elsewhere_patches_are_gathered(self) -> None:
        windows = Windows(torch.randn(1, 2, 3, 3, 4).double(), torch.randn(2, 2, 8, 2).double(), 2, 2, 1)
        assert "float64" in str(supported(windows))
        with pytest.raises(ValueError, match="float64"):
            attention_poses(windows, None, 1)


def test_spans_cover_every_example() -> None:
    window = _patches.Window(3, 2, 2, 3, (1, 1, 1, 1))
    spans = list(window.spans(7, 3))
    assert spans == [
        (slice(0, 3), slice(0, 18)), (slice(3, 6), slice(18, 36)), (slice(6, 7), slice(36, 42))
    ]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 16, 128])
def test_a_few_examples_at_a_time(batch: int) -> None:
    """Gradients of patches take about half of a layer's own elements, or one example's."""
    n = plan.Sizes(batch * 25, 288, 32, 4, 4, 4, image=batch * 32 * 49 * 16)
    count = plan.examples(n, batch)
    assert 1 <= count <= batch
    assert count * 25 * 288 * 16 <= max(plan.PATCHES * n.own, plan.LEAST, 25 * 288 * 16)
