"""The Triton `attend` in Triton's interpreter, outputs and every gradient, against explicit votes in float64."""

import pytest
import torch
import triton.language as tl

from flashcaps.kernels.attend import plan
from flashcaps.kernels.attend.launch import precision
from flashcaps.kernels.attend.triton import TritonAttend, dynamic_poses, supported
from flashcaps.kernels.common.replay import dry_run
from flashcaps.kernels.votes import Votes, covered
from flashcaps.routing.math import OverPositions, masked, over_parents

from ..operator_checks import opcheck, poison_memory
from . import steps
from .steps import GIVEN, SHAPES, WIDE, assert_close, draw, dynamic_errors, explicit, fused


def test_on_a_cpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    votes = Votes(torch.randn(2, 3, 1, 1, 4), torch.randn(5, 4, 3, 6))
    assert supported(votes) == "votes on cpu; the kernel runs on CUDA devices"
    with pytest.raises(ValueError, match="votes on cpu"):
        TritonAttend(votes)


def test_precision_follows_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, expected in {"highest": "tf32x3", "high": "tf32", "medium": "tf32"}.items():
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda setting=setting: setting)
        assert precision(torch.float32) == expected


class TestInterpreted:
    """Runs where kernels run on the CPU, one program after another."""

    __test__ = not torch.cuda.is_available()

    @pytest.fixture(autouse=True)
    def _poison(self, monkeypatch: pytest.MonkeyPatch) -> None:
        poison_memory(monkeypatch, "empty", "empty_strided")

    @pytest.mark.parametrize("given", GIVEN)
    @pytest.mark.parametrize(
        ("shape", "leaky"), [*((shape, False) for shape in SHAPES), (SHAPES[1], True), (WIDE[0], True)]
    )
    def test_output_and_gradients(self, shape: tuple[int, ...], leaky: bool, given: str) -> None:
        assert_close(draw(shape, given, torch.float32), leaky)

    @pytest.mark.parametrize("full", [1, 5, 1000])
    @pytest.mark.parametrize(("shape", "given"), [((3, 5, 3, 1, 3, 5), "both"), ((3, 5, 2, 2, 3, 3), "nothing")])
    def test_many_tiles(self, shape: tuple[int, ...], given: str, full: int, monkeypatch: pytest.MonkeyPatch) -> None:
        steps.small_tiles(monkeypatch, full)
        assert_close(draw(shape, given, torch.float32))

    @pytest.mark.parametrize("numbers", ["highest", "high", "fp16"])
    @pytest.mark.parametrize(
        ("shape", "full"), [(SHAPES[0], None), ((3, 3, 9, 2, 2, 11), None), ((5, 5, 2, 2, 3, 3), 1), (SHAPES[0], 5)]
    )
    def test_equal_couplings_of_many_rows(
        self, shape: tuple[int, ...], full: int | None, numbers: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Weights are copied first, and where TF32 is allowed gW is computed from halves of fp32. More than 64 columns
        of parents are taken twice.

        The interpreter multiplies the bits of bf16: halves are fp16 here.
        """
        monkeypatch.setattr(plan, "ROWS", 1)
        monkeypatch.setattr("flashcaps.kernels.attend.uniform.HALF", tl.constexpr(tl.float16))
        if full is not None:
            steps.small_tiles(monkeypatch, full)
        torch.set_float32_matmul_precision("highest" if numbers == "fp16" else numbers)
        assert_close(draw(shape, "nothing", torch.float16 if numbers == "fp16" else torch.float32))

    @pytest.mark.parametrize("given", GIVEN)
    @pytest.mark.parametrize("shape", [*SHAPES[:3], WIDE[1]])
    def test_fp16(self, shape: tuple[int, ...], given: str) -> None:
        assert_close(draw(shape, given, torch.float16))

    @pytest.mark.parametrize("given", ["query", "both"])
    @pytest.mark.parametrize("shape", [SHAPES[1], WIDE[1]])
    def test_detached_agreement(self, shape: tuple[int, ...], given: str) -> None:
        """Gradients are those of the same couplings, from votes that are detached."""
        u, weight, query, logits = draw(shape, given, torch.float32)
        attend = TritonAttend(Votes(u, weight), logits, detach=True)
        fixed = over_parents(attend.couplings(query).log())
        expected, actual = torch.einsum("bij,bijd->bjd", fixed, Votes(u, weight).explicit()), attend(query)
        given_to, grad = [x for x in (u, weight, query, logits) if x is not None], torch.randn(expected.shape)
        pairs = (torch.autograd.grad(x, given_to, grad) for x in (actual, expected))
        for x, y in zip(*pairs, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)

    def test_steep_couplings(self) -> None:
        """Agreements and logits of hundreds: softmax takes one parent, nothing overflows; their rounding grows."""
        for shape in ((3, 5, 4, 1, 8, 16), WIDE[0]):
            assert_close(draw(shape, "query", torch.float32, scale=300.0), factor=100.0)
        u, weight, query, logits = draw((3, 5, 4, 1, 3, 4), "both", torch.float32)
        assert logits is not None
        assert_close((u, weight, query, (200 * logits).detach().requires_grad_()), factor=100.0)

    @pytest.mark.parametrize("shape", [(3, 5, 3, 1, 4, 4), WIDE[0]])
    def test_a_parent_that_is_closed(self, shape: tuple[int, ...]) -> None:
        """A logit of -inf, of the first parent and of the last: no coupling."""
        u, weight, query, logits = (x.detach() for x in draw(shape, "both", torch.float32) if x is not None)
        logits[::2, 0] = logits[1::2, 2] = float("-inf")
        actual, expected = (step(u, weight, query, logits, False) for step in (fused, explicit))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)

    def test_strided_inputs(self) -> None:
        u, weight, query, _ = draw((3, 5, 2, 2, 3, 4), "query", torch.float32)
        assert query is not None
        strided = [torch.stack([x, x], -1).detach()[..., 0].requires_grad_() for x in (u, weight, query)]
        assert not strided[0].is_contiguous()
        assert_close((*strided, None))  # type: ignore[arg-type]

    @pytest.mark.parametrize("given", ["nothing", "query", "both"])
    @pytest.mark.parametrize("shape", [(3, 4, 2, 1, 3, 4), WIDE[0]])
    def test_opcheck(self, shape: tuple[int, ...], given: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        drawn = draw(shape, given, torch.float32)
        attend, backward = torch.ops.flashcaps.attend.default, torch.ops.flashcaps.attend_backward.default
        torch.library.opcheck(attend, (*drawn, False, False))
        inputs = [None if x is None else x.detach() for x in drawn]
        out, lse = attend(*inputs, False, False)
        torch.library.opcheck(backward, (out, inputs, [lse], False, False))

    @pytest.mark.parametrize(("leaky", "detach"), [(False, False), (True, False), (False, True)])
    @pytest.mark.parametrize("given", ["nothing", "query", "shared logits", "both"])
    def test_dynamic(self, given: str, leaky: bool, detach: bool) -> None:
        """Here a query stands for a bias."""
        far = dynamic_errors((3, 5, 4, 1, 3, 5), given, torch.float32, leaky=leaky, detach=detach)
        assert max(far) < 1e-4, far

    def test_dynamic_of_many_tiles_and_in_fp16(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert max(dynamic_errors((3, 5, 4, 1, 3, 5), "both", torch.float16)) < 1e-2
        steps.small_tiles(monkeypatch, 5)
        assert max(dynamic_errors((3, 5, 2, 2, 2, 3), "both", torch.float32)) < 1e-4

    def test_launches_of_a_step(self) -> None:
        """One an iteration, forward and backward, one for the output's gradient; the rest is one memset."""
        with dry_run() as launches:
            dynamic_errors((3, 5, 4, 1, 3, 5), "nothing", torch.float32)
        forward, backward = ["attend_forward"] * 2, ["attend_backward"] * 2
        expected = ["uniform_forward", *forward, "finish_alone", *backward, "uniform_backward"]
        assert [kernel.fn.__name__ for kernel, *_ in launches] == expected

    def test_dynamic_of_zeros(self) -> None:
        """Squash at 0: the pose and its gradients are 0, not NaN."""
        u, weight = (x.detach().zero_().requires_grad_() for x in draw(SHAPES[0], "nothing", torch.float32)[:2])
        v = dynamic_poses(Votes(u, weight), 3)
        assert v.count_nonzero() == torch.autograd.grad(v.sum(), u)[0].count_nonzero() == 0

    def test_an_empty_batch(self) -> None:
        u, weight, query, logits = draw((0, 3, 2, 1, 4, 4), "both", torch.float32)
        for out in (fused(u, weight, query, logits, False), dynamic_poses(Votes(u, weight), 2)):
            assert out.shape == (0, 2, 4)
            assert torch.autograd.grad(out.sum(), weight)[0].count_nonzero() == 0

    @pytest.mark.parametrize("detach", [False, True])
    def test_dynamic_opcheck(self, detach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        u, weight, bias, logits = draw((3, 4, 2, 1, 3, 4), "both", torch.float32)
        assert bias is not None
        route = torch.ops.flashcaps.route_dynamic.default
        bias = bias.detach()[0].requires_grad_()
        opcheck(route, u, weight, bias, logits, False, 2, detach)
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
        huge = torch.empty(1 << 16, 1 << 13, 1, 1, 8, device="meta"), torch.empty(2, 8, 1 << 13, 2, device="meta")
        assert "2**31" in str(supported(Votes(*huge)))
