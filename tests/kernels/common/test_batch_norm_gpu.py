"""BatchNorm, residual and ReLU as one step, compiled for a GPU, at the sizes of real networks, against torch."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashcaps.kernels.common import batch_norm as module
from flashcaps.kernels.common.batch_norm import batch_statistics, normalise, takes
from flashcaps.kernels.common.rows import DTYPES
from flashcaps.nn.backbones import ResidualBlock

from ...conftest import TOLERANCE, assert_near
from ..poison import poison_memory
from .test_batch_norm import HOW, assert_same, images, layer, results

pytestmark = pytest.mark.gpu

SHAPES = [(128, 64, 32, 32), (128, 128, 16, 16), (32, 512, 4, 4), (7, 260, 5, 3), (3, 3, 31, 29)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("residual", "relu"), HOW)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_torch(
    shape: tuple[int, ...], residual: bool, relu: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, r = (images(*shape, dtype=dtype, device="cuda") for _ in range(2))
    norm = layer(shape[1], "cuda")
    assert takes(norm, x)
    poison_memory(monkeypatch, "empty", "empty_like")
    assert_same(norm, x, r if residual else None, relu)


@pytest.mark.parametrize("residual", [False, True])
def test_same_bits(residual: bool) -> None:
    norm = layer(64, "cuda")
    x, r, g = (images(128, 64, 32, 32, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    first, again = (results(normalise, norm, x, r if residual else None, True, g) for _ in range(2))
    assert all(torch.equal(first[k], again[k]) for k in first)


def test_a_mean_much_larger_than_the_deviation() -> None:
    x, norm = images(64, 64, 32, 32, device="cuda") + 3e4, layer(64, "cuda")
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    statistics = batch_statistics(x, *running, 1.0)
    assert_near(statistics[1], x.double().var((0, 2, 3), correction=0), 3e4 * 2.0**-24)


def test_a_captured_step_is_the_eager_one() -> None:
    """Replayed as often, with the same bits in output, gradients and running statistics."""
    eager = layer(64, "cuda")
    norm = copy.deepcopy(eager)
    x, r, g = (images(16, 64, 32, 32, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    leaves = [x.requires_grad_(), r.requires_grad_()]

    def step(norm: nn.BatchNorm2d) -> list[Tensor]:
        y = normalise(norm, *leaves)
        return [y.detach(), *torch.autograd.grad(y, [*leaves, *norm.parameters()], g)]

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step(norm)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        captured = step(norm)
    norm.load_state_dict(eager.state_dict())
    for _ in range(3):
        graph.replay()
        expected = step(eager)
    torch.cuda.synchronize()
    for a, b in zip([*captured, *norm.buffers()], [*expected, *eager.buffers()], strict=True):
        assert torch.equal(a, b)
    assert norm.num_batches_tracked == 3


def train(module: Any, x: Tensor) -> None:
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loss = module(x).float().square().mean()
    loss.backward()


def far(module: nn.Module, twin: nn.Module) -> dict[str, float]:
    """||g - g'|| / ||g'|| of each parameter's gradient."""
    pairs = zip(module.named_parameters(), twin.parameters(), strict=True)
    return {name: float((p.grad - q.grad).norm() / q.grad.norm()) for (name, p), q in pairs}


def test_a_block_under_autocast_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    block = ResidualBlock(64, 128, stride=2).cuda().to(memory_format=torch.channels_last)
    twin, x = copy.deepcopy(block), images(16, 64, 32, 32, device="cuda")
    train(block, x)
    monkeypatch.setattr(module, "fused", lambda x: False)
    train(twin, x)
    assert max(far(block, twin).values()) < 0.1, far(block, twin)  # ReLUs a rounding error from 0 open in one alone
    for (name, p), q in zip(twin.named_buffers(), block.buffers(), strict=True):
        assert_near(q.float(), p.double(), TOLERANCE[torch.bfloat16].output, name)


def test_compiles_whole() -> None:
    block = ResidualBlock(64, 64).cuda().to(memory_format=torch.channels_last)
    twin, x = copy.deepcopy(block), images(4, 64, 16, 16, device="cuda")
    train(torch.compile(block, fullgraph=True), x)
    train(twin, x)
    assert max(far(block, twin).values()) < 0.1, far(block, twin)
    assert all(m.num_batches_tracked == 1 for m in block.modules() if isinstance(m, nn.BatchNorm2d))
