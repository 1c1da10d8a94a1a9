"""BatchNorm, residual and ReLU as one step against torch in float64: in Triton's interpreter where there is no GPU, and
compiled for one, at the sizes of real networks."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashcaps.kernels.common import batch_norm as module
from flashcaps.kernels.common.batch_norm import Cut, batch_norm, batch_norm_backward, batch_statistics, normalise, takes
from flashcaps.kernels.common.rows import DTYPES
from flashcaps.nn.backbones import Conv, ResidualBlock, ResNet
from flashcaps.training.capture import on_side_stream, record

from ...conftest import TOLERANCE, assert_near
from ..operator_checks import opcheck, poison_memory

SHAPES = [(2, 3, 3, 5), (1, 1, 2, 1), (3, 8, 4, 4), (2, 131, 3, 2), (5, 64, 7, 3), (1, 260, 1, 2)]
REAL = [(128, 64, 32, 32), (128, 128, 16, 16), (32, 512, 4, 4), (7, 260, 5, 3), (3, 3, 31, 29)]
HOW = [(False, False), (True, False), (False, True), (True, True)]  # residual, relu


def images(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(*shape, device=device).to(dtype).contiguous(memory_format=torch.channels_last)


def layer(channels: int, device: str = "cpu") -> nn.BatchNorm2d:
    """With parameters and running statistics that tell."""
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3, device=device)
    nn.init.normal_(norm.weight, 1.0, 0.5)
    nn.init.normal_(norm.bias, 0.1)
    nn.init.normal_(norm.running_mean)
    return norm


def by_torch(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    y = norm(x) if residual is None else norm(x) + residual
    return y.relu() if relu else y


def results(
    step: Any, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool, g: Tensor
) -> dict[str, Tensor]:
    """The output, all gradients, and what became of the running statistics."""
    norm, x = copy.deepcopy(norm), x.detach().clone().requires_grad_()
    residual = None if residual is None else residual.detach().clone().requires_grad_()
    leaves = {"x": x, "weight": norm.weight, "bias": norm.bias}
    if residual is not None:
        leaves["residual"] = residual
    y = step(norm, x, residual, relu)
    grads = torch.autograd.grad(y, list(leaves.values()), g.to(y.dtype))
    named = {f"gradient of {k}": v for k, v in zip(leaves, grads, strict=True)}
    return {"output": y.detach(), **named, **{k: v.clone() for k, v in norm.named_buffers()}}


def assert_same(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> dict[str, Tensor]:
    """As torch in float64. Where the two ReLUs disagree at a rounding error from 0, no gradient arrives."""
    double = copy.deepcopy(norm).double()
    expected = by_torch(double, x.double(), None if residual is None else residual.double(), False)
    g = torch.randn_like(x) * (expected.abs() > 1e-4 * expected.abs().max()).to(x.dtype)
    double = copy.deepcopy(norm).double()
    actual = results(normalise, norm, x, residual, relu, g)
    wanted = results(by_torch, double, x.double(), None if residual is None else residual.double(), relu, g)
    for name, value in actual.items():
        kind = TOLERANCE[value.dtype if value.dtype in TOLERANCE else torch.float32]
        assert_near(value, wanted[name], kind.gradient if "gradient" in name else kind.output, name)
    assert actual["output"].dtype == actual["gradient of x"].dtype == x.dtype
    for name in ("output", "gradient of x"):
        assert actual[name].is_contiguous(memory_format=torch.channels_last)
    return actual


def few_programs(monkeypatch: pytest.MonkeyPatch, programs: int) -> None:
    """That walk through many tiles, of 4 rows x 8 channels."""
    monkeypatch.setattr(module, "TILE", 32)
    monkeypatch.setattr(module, "PROGRAMS", dict.fromkeys(module.PROGRAMS, programs))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels take what lies on the CPU."""
    monkeypatch.setattr(module, "fused", lambda x: x.dtype in DTYPES)


class TestKernels:
    @pytest.fixture(autouse=True)
    def _poison(self, interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
        poison_memory(monkeypatch, "empty", "empty_like")

    @pytest.mark.parametrize(("residual", "relu"), HOW)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_as_torch(self, shape: tuple[int, ...], residual: bool, relu: bool) -> None:
        assert_same(layer(shape[1]), images(*shape), images(*shape) if residual else None, relu)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("residual", [False, True])
    def test_half_precision(self, dtype: torch.dtype, residual: bool) -> None:
        x, r = (images(3, 6, 5, 4, dtype=dtype) for _ in range(2))
        assert_same(layer(6), x, r if residual else None, True)
        if dtype == torch.bfloat16:
            actual = assert_same(layer(6).bfloat16(), x, r if residual else None, True)
            assert actual["gradient of weight"].dtype == actual["running_mean"].dtype == torch.bfloat16

    @pytest.mark.parametrize("residual", [False, True])
    def test_many_programs_of_many_tiles(self, residual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last tile is short, and programs have unequal shares."""
        few_programs(monkeypatch, 3)
        x = images(5, 6, 3, 5)
        assert (Cut(x).tiles, Cut(x).programs("moments")) == (19, 3)
        assert_same(layer(6), x, images(5, 6, 3, 5) if residual else None, True)

    @pytest.mark.parametrize("mean", [300.0, 3e4])
    def test_a_mean_much_larger_than_the_deviation(self, mean: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sums of squares would lose all digits; what is lost here is how far fp32 rounds a program's mean."""
        few_programs(monkeypatch, 4)
        x, norm = images(4, 5, 6, 6) + mean, layer(5)
        y = x.double() - x.double().mean((0, 2, 3), keepdim=True)
        statistics = batch_statistics(x, norm.running_mean, norm.running_var, norm.num_batches_tracked, 1.0)
        assert_near(statistics[1], y.square().mean((0, 2, 3)), 1e-5 + mean * 2.0**-24)
        assert_near(statistics[0] - mean, x.double().mean((0, 2, 3)) - mean, mean * 2.0**-23)

    def test_one_number_unlike_all_others(self) -> None:
        """At the first row, from which a program counts: of 24 bits log2 n are lost and a few rounded, no more."""
        x = images(3, 4, 8, 8) * 1e-3
        x[0, :, 0, 0] = 1e3
        norm = layer(4)
        statistics = batch_statistics(x, norm.running_mean, norm.running_var, norm.num_batches_tracked, 1.0)
        variance = x.double().var((0, 2, 3), correction=0)
        assert_near(statistics[1] / variance, 1.0, 192 * 2.0**-22)

    def test_equal_numbers_have_no_variance(self) -> None:
        x = torch.full((2, 3, 4, 4), 1e4).contiguous(memory_format=torch.channels_last)
        actual = assert_same(layer(3), x, None, False)
        assert_near(actual["running_var"], 0.7)

    def test_nan_is_not_hidden_by_the_relu(self) -> None:
        x = images(2, 3, 4, 4)
        x[1, 2, 0, 0] = float("nan")
        for residual in (None, images(2, 3, 4, 4)):
            y = normalise(layer(3), x, residual)
            assert y[:, 2].isnan().all()
            assert y[:, :2].isfinite().all()

    def test_gradients_in_any_layout(self) -> None:
        norm, x, r, g = layer(4), images(2, 4, 3, 5), torch.randn(2, 4, 3, 5), images(2, 4, 3, 5)
        expected = results(normalise, norm, x, r, True, g)
        for other in (g.contiguous(), g[:, :, :1].expand(2, 4, 3, 5)):
            actual = results(normalise, norm, x, r, True, other)
            assert_near(actual["gradient of residual"], other.double() * (expected["output"] > 0))


def test_operators_are_registered_right() -> None:
    shape, c = (2, 3, 4, 5), 3
    x, r, g = (images(*shape).requires_grad_() for _ in range(3))
    w, b = (torch.randn(c, requires_grad=True) for _ in range(2))
    running = torch.randn(c), torch.rand(c), torch.tensor(3)
    opcheck(batch_statistics, x.detach(), *running, 0.1)
    statistics = batch_statistics(x.detach(), *running, 0.1)
    for residual, relu in HOW:
        r_or_not = r if residual else None
        opcheck(batch_norm, x, statistics, w, b, r_or_not, 1e-5, relu)
        y = batch_norm(x, statistics, w, b, r_or_not, 1e-5, relu).detach() if residual and relu else None
        given = [None if t is None else t.detach() for t in (g, x, y, statistics, w, b)]
        opcheck(batch_norm_backward, *given, 1e-5, relu)


def test_what_the_kernels_take(interpreted: None) -> None:
    norm, x = layer(4), images(2, 4, 3, 5)
    assert takes(norm, x)
    assert not takes(norm, x.contiguous())
    assert not takes(norm, x.double())
    assert not takes(norm, images(1, 4, 1, 1))
    assert not takes(norm.eval(), x)
    assert not takes(nn.SyncBatchNorm(4), x)
    assert not takes(nn.BatchNorm2d(4, affine=False), x)
    assert not takes(nn.BatchNorm2d(4, track_running_stats=False), x)
    assert not takes(nn.BatchNorm2d(4, momentum=None), x)
    watched = layer(4)
    handle = watched.register_forward_hook(lambda *_: None)
    assert not takes(watched, x)
    handle.remove()
    assert takes(watched, x)


def test_elsewhere_as_torch() -> None:
    norm, x, r = layer(4), images(2, 4, 3, 5), images(2, 4, 3, 5)
    assert not takes(norm, x)
    twin = copy.deepcopy(norm)
    assert torch.equal(normalise(norm, x, r), by_torch(twin, x, r, True))
    assert torch.equal(normalise(norm, x, relu=False), twin(x))
    assert torch.equal(norm.running_var, twin.running_var)
    assert norm.num_batches_tracked == 2


BACKBONES = [ResNet(((4, 1, 1), (6, 2, 2))), Conv(5, kernel=3, norm="before"), Conv(5, kernel=3, norm="after")]


def gradients(backbone: Any, x: Tensor) -> dict[str, Tensor]:
    backbone.zero_grad()
    y = backbone(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    grads = {f"gradient of {k}": p.grad.clone() for k, p in backbone.named_parameters()}
    return {"output": y.detach(), **grads, **{k: v.clone() for k, v in backbone.named_buffers()}}


@pytest.mark.parametrize("spec", BACKBONES, ids=lambda spec: type(spec).__name__)
def test_a_backbone_trains_alike(spec: Any, interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = spec.build(3).to(memory_format=torch.channels_last)
    twin, x = copy.deepcopy(backbone).double(), images(2, 3, 6, 6)
    expected = gradients(twin, x.double())
    calls = []
    statistics = module.batch_statistics
    monkeypatch.setattr(module, "batch_statistics", lambda *a: calls.append(a) or statistics(*a))
    actual = gradients(backbone, x)
    assert len(calls) == sum(isinstance(m, nn.BatchNorm2d) for m in backbone.modules())
    for name, value in actual.items():
        assert_near(value, expected[name], TOLERANCE[torch.float32].gradient, name)
    with torch.no_grad():
        assert_near(backbone.eval()(x), twin.eval()(x.double()), TOLERANCE[torch.float32].gradient)
    assert len(calls) == sum(isinstance(m, nn.BatchNorm2d) for m in backbone.modules())


def test_compiles_whole(interpreted: None) -> None:
    """One graph, running statistics included."""
    torch._dynamo.reset()
    block = ResidualBlock(4, 6, stride=2).to(memory_format=torch.channels_last)
    twin, x = copy.deepcopy(block), images(2, 4, 6, 6)
    compiled: Any = torch.compile(block, fullgraph=True, backend="aot_eager")
    for trained, run in ((twin, twin), (block, compiled)):
        run(x).square().sum().backward()
        run(x).square().sum().backward()
        assert trained.body[1].num_batches_tracked == 2
    for (name, p), q in zip(twin.named_parameters(), block.parameters(), strict=True):
        assert_near(q.grad, p.grad.double(), TOLERANCE[torch.float32].gradient, name)
    for (name, p), q in zip(twin.named_buffers(), block.buffers(), strict=True):
        assert_near(q.double(), p.double(), 1e-6, name)


def train(model: Any, x: Tensor) -> None:
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loss = model(x).float().square().mean()
    loss.backward()


def far(model: nn.Module, twin: nn.Module) -> dict[str, float]:
    """||g - g'|| / ||g'|| of each parameter's gradient."""
    pairs = zip(model.named_parameters(), twin.parameters(), strict=True)
    return {name: float((p.grad - q.grad).norm() / q.grad.norm()) for (name, p), q in pairs}


@pytest.mark.gpu
class TestOnAGPU:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(("residual", "relu"), HOW)
    @pytest.mark.parametrize("shape", REAL, ids=str)
    def test_as_torch(
        self, shape: tuple[int, ...], residual: bool, relu: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x, r = (images(*shape, dtype=dtype, device="cuda") for _ in range(2))
        norm = layer(shape[1], "cuda")
        assert takes(norm, x)
        poison_memory(monkeypatch, "empty", "empty_like")
        assert_same(norm, x, r if residual else None, relu)

    @pytest.mark.parametrize("residual", [False, True])
    def test_same_bits(self, residual: bool) -> None:
        norm = layer(64, "cuda")
        x, r, g = (images(128, 64, 32, 32, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        first, again = (results(normalise, norm, x, r if residual else None, True, g) for _ in range(2))
        assert all(torch.equal(first[k], again[k]) for k in first)

    def test_a_mean_much_larger_than_the_deviation(self) -> None:
        x, norm = images(64, 64, 32, 32, device="cuda") + 3e4, layer(64, "cuda")
        running = norm.running_mean, norm.running_var, norm.num_batches_tracked
        statistics = batch_statistics(x, *running, 1.0)
        assert_near(statistics[1], x.double().var((0, 2, 3), correction=0), 3e4 * 2.0**-24)

    def test_a_captured_step_is_the_eager_one(self) -> None:
        """Replayed as often, with the same bits in output, gradients and running statistics."""
        eager = layer(64, "cuda")
        norm = copy.deepcopy(eager)
        x, r, g = (images(16, 64, 32, 32, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        leaves = [x.requires_grad_(), r.requires_grad_()]

        def step(norm: nn.BatchNorm2d) -> list[Tensor]:
            y = normalise(norm, *leaves)
            return [y.detach(), *torch.autograd.grad(y, [*leaves, *norm.parameters()], g)]

        on_side_stream(lambda: step(norm))
        graph, captured = record(lambda: step(norm))
        norm.load_state_dict(eager.state_dict())
        for _ in range(3):
            graph.replay()
            expected = step(eager)
        torch.cuda.synchronize()
        for a, b in zip([*captured, *norm.buffers()], [*expected, *eager.buffers()], strict=True):
            assert torch.equal(a, b)
        assert norm.num_batches_tracked == 3

    def test_a_block_under_autocast_as_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        block = ResidualBlock(64, 128, stride=2).cuda().to(memory_format=torch.channels_last)
        twin, x = copy.deepcopy(block), images(16, 64, 32, 32, device="cuda")
        train(block, x)
        monkeypatch.setattr(module, "fused", lambda x: False)
        train(twin, x)
        assert max(far(block, twin).values()) < 0.1, far(block, twin)  # ReLUs a rounding error from 0 open in one alone
        for (name, p), q in zip(twin.named_buffers(), block.buffers(), strict=True):
            assert_near(q.float(), p.double(), TOLERANCE[torch.bfloat16].output, name)

    def test_compiles_whole(self) -> None:
        block = ResidualBlock(64, 64).cuda().to(memory_format=torch.channels_last)
        twin, x = copy.deepcopy(block), images(4, 64, 16, 16, device="cuda")
        train(torch.compile(block, fullgraph=True), x)
        train(twin, x)
        assert max(far(block, twin).values()) < 0.1, far(block, twin)
        assert all(m.num_batches_tracked == 1 for m in block.modules() if isinstance(m, nn.BatchNorm2d))
