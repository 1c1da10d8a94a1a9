"""The Triton `attend` in Triton's interpreter, outputs and every gradient, against explicit votes in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor

from flashcaps.kernels.attend import plan
from flashcaps.kernels.attend.launch import precision
from flashcaps.kernels.attend.triton import TritonAttend, dynamic_poses, supported
from flashcaps.kernels.common.rows import ceil_div
from flashcaps.routing.dynamic import dynamic_routing
from flashcaps.routing.math import OverPositions, masked, over_parents
from flashcaps.routing.votes import Votes, covered

from ..poison import poison_memory

GIVEN = ["nothing", "query", "logits", "shared logits", "both"]
# b, g, j, c, d, h: vector poses, matrix poses, primes, ones, powers of two that leave nothing over
SHAPES = [(5, 7, 3, 1, 3, 5), (3, 5, 2, 2, 3, 3), (2, 3, 5, 4, 4, 4), (1, 1, 1, 1, 1, 1), (4, 8, 4, 1, 8, 16)]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# what an operator whose gradient is asked of its first output alone can be checked for
STATIC = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
Drawn = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def draw(shape: tuple[int, ...], given: str, dtype: torch.dtype, device: str = "cpu", scale: float = 1.0) -> Drawn:
    """u, weight, query and logits that require gradients."""
    b, g, j, c, d, h = shape

    def normal(*size: int, std: float = 1.0, kind: torch.dtype = dtype) -> Tensor:
        return (std * torch.randn(size, device=device)).to(kind).requires_grad_()

    logits = {"logits": (g, j), "both": (g, j), "shared logits": (j,)}.get(given)
    return (
        normal(b, g, 1, c, d),
        normal(j, d, g, h, std=d**-0.5),
        normal(b, j, c * h, std=scale * (c * h) ** -0.5) if given in ("query", "both") else None,
        None if logits is None else normal(*logits, kind=torch.float32),
    )


def explicit(u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool) -> Tensor:
    v = Votes(u, weight).explicit()
    a = v.new_zeros(v.shape[:3])
    if query is not None:
        a = a + torch.einsum("bijd,bjd->bij", v, query)
    return torch.einsum("bij,bijd->bjd", over_parents(a if logits is None else a + logits, leaky), v)


def fused(u: Tensor, weight: Tensor, query: Tensor | None, logits: Tensor | None, leaky: bool) -> Tensor:
    return TritonAttend(Votes(u, weight), logits, leaky)(query)


def with_gradients(function: Callable[..., Tensor], drawn: Drawn, grad: Tensor, leaky: bool) -> list[Tensor]:
    out = function(*drawn, leaky)
    return [out.detach(), *torch.autograd.grad(out, [x for x in drawn if x is not None], grad.to(out.dtype))]


def errors(drawn: Drawn, leaky: bool) -> list[float]:
    """||x - reference|| / ||reference|| of the output and of every gradient. NaN is inf."""
    u, weight = drawn[:2]
    n = Votes(u, weight).shape
    grad = torch.randn(n[0], n[2], n[3], device=u.device).to(u.dtype)
    actual = with_gradients(fused, drawn, grad, leaky)
    double = tuple(None if x is None else x.detach().double().requires_grad_() for x in drawn)
    expected = with_gradients(explicit, double, grad, leaky)  # type: ignore[arg-type]
    for x, given in zip(actual[1:], [x for x in drawn if x is not None], strict=True):
        assert x.dtype == given.dtype
        assert x.shape == given.shape
    return relative(actual, expected)


def assert_close(drawn: Drawn, leaky: bool = False, factor: float = 1.0) -> None:
    far = errors(drawn, leaky)
    assert max(far) < factor * TOLERANCE[drawn[0].dtype], far


def dynamic_errors(
    shape: tuple[int, ...], given: str, dtype: torch.dtype, device: str = "cpu", **how: Any
) -> list[float]:
    """Relative errors of the pose and of the gradients of u, weight, bias and logits."""
    u, weight, bias, logits = draw(shape, given, dtype, device)
    if bias is not None:
        bias = bias.detach()[0].requires_grad_()
    given_to = [x for x in (u, weight, bias, logits) if x is not None]
    grad = torch.randn(u.shape[0], weight.shape[0], shape[3] * shape[5], device=device).to(dtype)
    v = dynamic_poses(Votes(u, weight), 3, logits, bias, **how)
    actual = [v.detach(), *torch.autograd.grad(v, given_to, grad)]
    double = [None if x is None else x.detach().double().requires_grad_() for x in (u, weight, bias, logits)]
    votes = Votes(double[0], double[1]).explicit()  # type: ignore[arg-type]
    out = dynamic_routing(votes, iterations=3, bias=double[2], logits=double[3], **how).pose
    expected = [out.detach(), *torch.autograd.grad(out, [x for x in double if x is not None], grad.double())]
    return relative(actual, expected)


def relative(actual: list[Tensor], expected: list[Tensor]) -> list[float]:
    """||x - y|| / ||y||; NaN is inf."""
    far = [(x.double() - y).norm() / y.norm().clamp(min=1e-3) for x, y in zip(actual, expected, strict=True)]
    return [float(torch.nan_to_num(e, nan=float("inf"))) for e in far]


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is NaN."""
    poison_memory(monkeypatch, "empty", "empty_strided")


def small_tiles(monkeypatch: pytest.MonkeyPatch, full: int) -> None:
    """Tiles of 2 x 2, so that small shapes have many; `full` programs, so that each loops, or none does."""
    whole = plan.tile
    monkeypatch.setattr(plan, "FULL", dict.fromkeys(plan.FULL, full))
    plan.cut.cache_clear()
    monkeypatch.setattr(plan, "tile", lambda n, kernel, *given: whole(n, kernel, *given)._replace(bt=2, ic=2))
    monkeypatch.setattr(plan, "uniform", lambda kernel, n: plan.UniformTile(2, 4, 4, 1, 2, 1))
    monkeypatch.setattr(plan, "MULTIPROCESSORS", full)
    plan.chunks.cache_clear()


def test_on_a_cpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    votes = Votes(torch.randn(2, 3, 1, 1, 4), torch.randn(5, 4, 3, 6))
    assert supported(votes) == "votes on cpu; the kernel runs on CUDA devices"
    with pytest.raises(ValueError, match="votes on cpu"):
        TritonAttend(votes)


class TestInterpreted:
    """Runs where kernels run on the CPU, one program after another."""

    __test__ = not torch.cuda.is_available()

    @pytest.fixture(autouse=True)
    def _seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        poison(monkeypatch)

    @pytest.mark.parametrize("given", GIVEN)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_output_and_gradients(self, shape: tuple[int, ...], given: str) -> None:
        assert_close(draw(shape, given, torch.float32))

    @pytest.mark.parametrize("given", GIVEN)
    def test_leaky(self, given: str) -> None:
        assert_close(draw(SHAPES[1], given, torch.float32), leaky=True)

    @pytest.mark.parametrize("full", [1, 5, 1000])
    @pytest.mark.parametrize("given", ["nothing", "both"])
    @pytest.mark.parametrize("shape", [(3, 5, 3, 1, 3, 5), (3, 5, 2, 2, 3, 3)])
    def test_many_tiles(self, shape: tuple[int, ...], given: str, full: int, monkeypatch: pytest.MonkeyPatch) -> None:
        small_tiles(monkeypatch, full)
        assert_close(draw(shape, given, torch.float32))

    @pytest.mark.parametrize("numbers", ["highest", "high", "fp16"])
    @pytest.mark.parametrize("full", [None, 1, 5])
    @pytest.mark.parametrize("shape", [SHAPES[0], (5, 5, 2, 2, 3, 3), (3, 3, 9, 2, 2, 11)])
    def test_equal_couplings_of_many_rows(
        self, shape: tuple[int, ...], full: int | None, numbers: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Weights are copied first, and where TF32 is allowed gW is computed from halves of fp32.

        The interpreter multiplies the bits of bf16: halves are fp16 here.
        """
        monkeypatch.setattr(plan, "ROWS", 1)
        monkeypatch.setattr("flashcaps.kernels.attend.uniform.HALF", tl.constexpr(tl.float16))
        if full is not None:
            small_tiles(monkeypatch, full)
        torch.set_float32_matmul_precision("highest" if numbers == "fp16" else numbers)
        drawn = draw(shape, "nothing", torch.float16 if numbers == "fp16" else torch.float32)
        assert_close(drawn)

    @pytest.mark.parametrize("given", ["nothing", "both"])
    @pytest.mark.parametrize("shape", SHAPES[:3])
    def test_fp16(self, shape: tuple[int, ...], given: str) -> None:
        assert_close(draw(shape, given, torch.float16))

    @pytest.mark.parametrize("given", ["query", "both"])
    def test_detached_agreement(self, given: str) -> None:
        u, weight, query, logits = draw(SHAPES[1], given, torch.float32)
        attend = TritonAttend(Votes(u, weight), logits, detach=True)
        fixed = over_parents(attend.couplings(query).log())  # the same couplings, from votes that are detached
        expected = torch.einsum("bij,bijd->bjd", fixed, Votes(u, weight).explicit())
        given_to = [x for x in (u, weight, query, logits) if x is not None]
        grad = torch.randn(expected.shape)
        actual = attend(query)
        for x, y in zip(
            torch.autograd.grad(actual, given_to, grad), torch.autograd.grad(expected, given_to, grad), strict=True
        ):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)

    def test_steep_couplings(self) -> None:
        """Agreements of hundreds: softmax takes one parent, nothing overflows; their rounding grows as they do."""
        assert_close(draw((3, 5, 4, 1, 8, 16), "query", torch.float32, scale=300.0), factor=100.0)

    def test_logits_of_hundreds(self) -> None:
        u, weight, query, logits = draw((3, 5, 4, 1, 3, 4), "both", torch.float32)
        assert logits is not None
        assert_close((u, weight, query, (200 * logits).detach().requires_grad_()), factor=100.0)

    def test_a_parent_that_is_closed(self) -> None:
        """A logit of -inf: no coupling, whichever parent comes first."""
        u, weight, query, logits = draw((3, 5, 3, 1, 4, 4), "both", torch.float32)
        assert logits is not None
        closed = logits.detach().clone()
        closed[::2, 0] = closed[1::2, 2] = float("-inf")
        actual = fused(u, weight, query, closed, False)
        torch.testing.assert_close(actual, explicit(u, weight, query, closed, False), rtol=1e-5, atol=1e-5)

    def test_strided_inputs(self) -> None:
        u, weight, query, _ = draw((3, 5, 2, 2, 3, 4), "query", torch.float32)
        assert query is not None
        strided = [torch.stack([x, x], -1).detach()[..., 0].requires_grad_() for x in (u, weight, query)]
        assert not strided[0].is_contiguous()
        assert_close((*strided, None))  # type: ignore[arg-type]

    def test_an_empty_batch(self) -> None:
        drawn = draw((0, 3, 2, 1, 4, 4), "both", torch.float32)
        out = fused(*drawn, False)
        assert out.shape == (0, 2, 4)
        out.sum().backward()
        assert drawn[1].grad is not None
        assert drawn[1].grad.count_nonzero() == 0

    @pytest.mark.parametrize("given", GIVEN)
    def test_couplings(self, given: str) -> None:
        u, weight, query, logits = (None if x is None else x.detach() for x in draw(SHAPES[1], given, torch.float32))
        assert u is not None
        assert weight is not None
        v = Votes(u, weight).explicit()
        c = TritonAttend(Votes(u, weight), logits).couplings(query)
        torch.testing.assert_close(torch.einsum("bij,bijd->bjd", c, v), explicit(u, weight, query, logits, False))
        torch.testing.assert_close(c.sum(-1), torch.ones(v.shape[:2]))

    def test_same_bits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small_tiles(monkeypatch, 5)
        drawn = draw((3, 5, 2, 1, 3, 5), "both", torch.float32)
        grad = torch.randn(3, 2, 5)
        for x, y in zip(*(with_gradients(fused, drawn, grad, False) for _ in range(2)), strict=True):
            assert torch.equal(x, y)

    @pytest.mark.parametrize("given", ["nothing", "query", "both"])
    def test_opcheck(self, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        u, weight, query, logits = draw((3, 4, 2, 1, 3, 4), given, torch.float32)
        if logits is not None:
            logits = logits.expand(4, 2).detach().clone().requires_grad_()
        attend = torch.ops.flashcaps.attend.default
        torch.library.opcheck(attend, (u, weight, query, logits, False, False))
        out, lse = attend(u, weight, query, logits, False, False)
        inputs = [None if x is None else x.detach() for x in (u, weight, query, logits)]
        backward = torch.ops.flashcaps.attend_backward.default
        torch.library.opcheck(backward, (out.detach(), inputs, [lse.detach()], False, False))

    def test_compile_takes_it_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        drawn = draw((3, 4, 2, 1, 3, 4), "both", torch.float32)
        grad = torch.randn(3, 2, 4)
        compiled: Any = torch.compile(fused, fullgraph=True, backend="aot_eager")
        for x, y in zip(
            with_gradients(compiled, drawn, grad, False), with_gradients(fused, drawn, grad, False), strict=True
        ):
            torch.testing.assert_close(x, y)

    @pytest.mark.parametrize(("leaky", "detach"), [(False, False), (True, False), (False, True)])
    @pytest.mark.parametrize("given", ["nothing", "query", "shared logits", "both"])
    def test_dynamic(self, given: str, leaky: bool, detach: bool) -> None:
        """Here a query stands for a bias."""
        far = dynamic_errors((3, 5, 4, 1, 3, 5), given, torch.float32, leaky=leaky, detach=detach)
        assert max(far) < 1e-4, far

    def test_dynamic_of_many_tiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small_tiles(monkeypatch, 5)
        far = dynamic_errors((3, 5, 2, 2, 2, 3), "both", torch.float32)
        assert max(far) < 1e-4, far

    def test_dynamic_in_fp16(self) -> None:
        far = dynamic_errors((3, 5, 4, 1, 3, 5), "both", torch.float16)
        assert max(far) < 1e-2, far

    def test_dynamic_of_zeros(self) -> None:
        """Squash at 0: the pose and its gradients are 0, not NaN."""
        u, weight = (x.detach().zero_().requires_grad_() for x in draw(SHAPES[0], "nothing", torch.float32)[:2])
        v = dynamic_poses(Votes(u, weight), 3)
        v.sum().backward()
        assert v.count_nonzero() == 0
        assert u.grad is not None
        assert u.grad.count_nonzero() == 0

    def test_dynamic_of_an_empty_batch(self) -> None:
        u, weight, _, _ = draw((0, 3, 2, 1, 4, 4), "nothing", torch.float32)
        v = dynamic_poses(Votes(u, weight), 2)
        v.sum().backward()
        assert v.shape == (0, 2, 4)
        assert weight.grad is not None
        assert weight.grad.count_nonzero() == 0

    @pytest.mark.parametrize("detach", [False, True])
    def test_dynamic_opcheck(self, detach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        u, weight, bias, logits = draw((3, 4, 2, 1, 3, 4), "both", torch.float32)
        assert bias is not None
        route = torch.ops.flashcaps.route_dynamic.default
        bias = bias.detach()[0].requires_grad_()
        torch.library.opcheck(route, (u, weight, bias, logits, False, 2, detach), test_utils=STATIC)
        v, *kept = (x.detach() for x in route(u, weight, bias, logits, False, 2, detach))
        inputs = [None if x is None else x.detach() for x in (u, weight, bias, logits)]
        backward = torch.ops.flashcaps.route_dynamic_backward.default
        torch.library.opcheck(backward, (torch.randn_like(v), inputs, kept, False, 2, detach))

    def test_what_it_cannot_run(self) -> None:
        u, weight = torch.randn(4, 3, 1, 1, 4), torch.randn(5, 4, 3, 6)
        assert supported(Votes(u, weight)) is None
        assert "one child each" in str(supported(Votes(u.expand(4, 3, 2, 1, 4), weight)))
        assert "float64" in str(supported(Votes(u.double(), weight.double())))
        assert "float16" in str(supported(Votes(u.half(), weight)))
        places = OverPositions(covered(3, 3, 2, 1), 9)
        assert "softmax" in str(supported(Votes(u, weight), places))
        assert "softmax" in str(supported(Votes(u, weight), masked(over_parents, torch.ones(3, 5).bool())))
        assert supported(Votes(torch.randn(1, 1, 1, 1, 33), torch.randn(1, 33, 1, 2))) is None
        huge = Votes(
            torch.empty(1 << 16, 1 << 13, 1, 1, 8, device="meta"), torch.empty(2, 8, 1 << 13, 2, device="meta")
        )
        assert "2**31" in str(supported(huge))

    def test_precision_follows_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for setting, expected in {"highest": "tf32x3", "high": "tf32", "medium": "tf32"}.items():
            monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda setting=setting: setting)
            assert precision(torch.float32) == expected


class TestPlan:
    """The cut covers the work, and its partial sums stay small."""

    CASES = {
        "capsnet": (128, 1152, 10, 1, 8, 16),
        "multimnist": (128, 3200, 10, 1, 8, 16),
        "cifar100": (128, 2048, 100, 1, 8, 16),
        "attention": (6272, 288, 32, 4, 4, 4),
        "one": (1, 1, 1, 1, 1, 1),
        "primes": (131, 1153, 7, 1, 5, 3),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_every_tile_has_one_program(self, case: str) -> None:
        n = plan.Sizes(*self.CASES[case])
        for kernel in ("weighted_sum", "parent_gradient"):
            t = plan.tile(n, kernel)
            cut = plan.cut(n, t, kernel)
            chunks, batches, groups = cut.grid
            assert (chunks - 1) * cut.tiles * t.ic < n.g <= chunks * cut.tiles * t.ic
            assert (batches - 1) * cut.batches * t.bt < n.b <= batches * cut.batches * t.bt
            assert (groups - 1) * cut.parents < n.j <= groups * cut.parents

    @pytest.mark.parametrize("case", CASES)
    def test_products_of_equal_couplings(self, case: str) -> None:
        """Few rows, a small tile. Many: all parents' columns at a time, and as many programs as the device holds."""
        n = plan.Sizes(*self.CASES[case])
        tiles = {kernel: plan.uniform(kernel, n) for kernel in plan.MANY_ROWS}
        if not n.many:
            assert set(tiles.values()) == {plan.FEW_ROWS}
            return
        assert tiles["uniform_sum"].parents >= min(n.j * n.h, 128)
        t = tiles["uniform_weight_gradient"]
        rows, programs = ceil_div(n.b * n.c, t.rows), ceil_div(n.g * n.d, t.columns)
        per, chunks = plan.chunks(rows, programs, n.room // n.weight, t.resident)
        assert (chunks - 1) * per < rows <= chunks * per
        full = plan.MULTIPROCESSORS * t.resident
        assert 0.9 * full < chunks * programs <= full

    def test_exact_products_have_registers_to_themselves(self) -> None:
        """Three products for one hold more: no bound, and half the columns."""
        n = plan.Sizes(*self.CASES["capsnet"])
        fast, exact = (plan.tile(n, "weighted_sum", e) for e in (False, True))
        assert (fast.ic, exact.ic) == (16, 8)
        assert [plan.tile(n, "parent_gradient", e).registers for e in (False, True)] == [168, None]

    @pytest.mark.parametrize("case", ["capsnet", "multimnist", "cifar100", "attention"])
    def test_partial_sums_are_small_and_the_device_full(self, case: str) -> None:
        n = plan.Sizes(*self.CASES[case])
        t = plan.tile(n, "parent_gradient")
        chunks, batches, groups = plan.cut(n, t, "parent_gradient").grid
        assert chunks * batches * groups >= plan.FULL["parent_gradient"] // 2
        weight, query = n.j * n.d * n.g * n.h, n.b * n.j * n.c * n.h
        assert 4 * ((batches - 1) * weight + chunks * query) < 64 << 20

    LAYERS = {
        "few children": (128, 256, 10, 1, 8, 16),
        "many parents": (64, 800, 128, 4, 4, 4),
        "6x6": (64, 800, 32, 6, 6, 6),
        "large batch": (512, 1152, 10, 1, 8, 16),
        "image": (784, 288, 32, 4, 4, 4, 16 * 32 * 256 * 16),
        "small image": (144, 288, 32, 4, 4, 4, 16 * 32 * 64 * 16),
        "stride 1": (3200, 288, 32, 4, 4, 4, 128 * 32 * 49 * 16, 3200 * 512),
    }

    @pytest.mark.parametrize("case", LAYERS)
    def test_room_for_partial_sums_is_bound_by_the_layer(self, case: str) -> None:
        """And no layer waits long for it: half of the device is filled, or as much as with all the room."""
        n = plan.Sizes(*self.LAYERS[case])
        t = plan.tile(n, "parent_gradient")
        chunks, batches, groups = plan.cut(n, t, "parent_gradient").grid
        assert (batches - 1) * n.weight + chunks * n.parents <= n.room <= plan.ROOM * n.own
        assert chunks * batches * groups >= min(plan.FULL["parent_gradient"] // 2, 160)

    def test_a_layer_too_small_for_its_bound_is_not_starved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        n = plan.Sizes(*self.LAYERS["image"])
        t = plan.tile(n, "parent_gradient")
        monkeypatch.setattr(plan, "ROOM", 0.01)
        monkeypatch.setattr(plan, "LEAST_ROOM", 0.01)
        plan.cut.cache_clear()
        chunks, batches, groups = plan.cut(n, t, "parent_gradient").grid
        plan.cut.cache_clear()
        assert chunks * batches * groups >= plan.FULL["parent_gradient"] // 2
