"""Models in torch.compile: one for every algorithm and kind of layer, forward and backward, as one graph."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import flashcaps
from flashcaps.kernels.common import batch_norm, norm, patches, stem
from flashcaps.nn.backbones import ChannelsLast
from flashcaps.nn.capsules import CapsuleLayer
from flashcaps.training.capture import capture

RESNET = {"stages": ((64, 1, 1), (128, 1, 2))}
MODELS: dict[str, dict[str, Any]] = {  # and what makes each small where it is compiled and captured on a device
    "capsnet_mnist": {"image": (1, 20, 20)},  # dynamic, dense
    "dynamic_simple_cifar10": {"image": (3, 20, 20)},  # dynamic, after a stem that standardises
    "attention_simple_cifar10": {},  # attention, all layers at once
    "attention_resnet_cifar10": {"backbone": RESNET},
    "attention_diverse_wide": {"backbone": {"channels": 128}},  # wide poses
    "em_smallnorb": {"iterations": 2},  # em, over positions, a class layer with coordinates
    "em_resnet_cifar10": {"backbone": RESNET},
    "heinsen_smallnorb": {"image": (2, 32, 32), "iterations": 2},  # heinsen, any number of children
    "heinsen_sst2": {"layers": 5, "width": 128, "iterations": 2},  # of tokens, after a linear layer
    "discriminative_mnist": {"image": (1, 20, 20)},
}
QUICK = ("attention_resnet_cifar10", "em_smallnorb")
SLOW = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
MODES = ("default", "reduce-overhead")
BOTH = [pytest.param(name, mode, marks=() if mode == MODES[k % 2] else pytest.mark.slow)
        for k, name in enumerate(MODELS) for mode in MODES]  # fmt: skip
SRC = Path(flashcaps.__file__).parent


@pytest.fixture(autouse=True)
def afresh() -> None:
    """Models share the code of their forward pass, of which Dynamo compiles a few kinds alone."""
    torch.compiler.reset()


def draw(model: Any, batch: int, device: str = "cpu") -> Tensor:
    shape = (batch, *model.image) if model.image else (batch, 6, *model.reads)
    return torch.rand(shape, device=device)


def gradients(run: Any, model: Any, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(1)  # dropout draws the same numbers in every call
    run(x).scores.float().add(1).square().mean().backward()  # scores of heinsen begin at 0
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", SLOW)
def test_traced_as_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU as far as Dynamo follows it; what it found is not run."""
    for module in (norm, patches, batch_norm, stem):
        monkeypatch.setattr(module, "fused", lambda x: x.is_floating_point())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    model = flashcaps.create_model(name)
    for layer in model.modules():
        if isinstance(layer, CapsuleLayer):
            layer.backend = "triton"
    seen: list[str] = []

    def trace(graph: Any, inputs: list[Tensor]) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        found = graph.graph.output_node().args[0]
        return lambda *_: [torch.zeros(x.meta["example_value"].shape) for x in found]

    output: Any = torch.compile(model, fullgraph=True, dynamic=False, backend=trace)(draw(model, 2))
    assert output.scores.shape == (2, model.classes)
    assert any("flashcaps." in target for target in seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", flashcaps.list_models())
def test_compiled_gradients_on_a_cpu(name: str) -> None:
    """In float64: in fp32 the gradient of a bias before batch normalisation, which is 0, is rounding alone."""
    model = flashcaps.create_model(name).double()
    x = draw(model, 2).double()
    expected = [g.clone() for g in gradients(model, model, x)]
    actual = gradients(torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager"), model, x)
    for a, e in zip(actual, expected, strict=True):
        assert (a - e).norm() <= 1e-6 * e.norm() + 1e-12


def test_what_compilers_trace_makes_named_tuples_by_their_class() -> None:
    """torch 2.11 cannot give back a named tuple that `_replace` made while it traced."""
    for path in [*SRC.glob("nn/*.py"), *SRC.glob("routing/*.py"), *SRC.glob("models/*.py"), *SRC.glob("kernels/*.py")]:
        assert not re.search(r"\._(replace|make)\(", path.read_text()), path


def test_a_model_on_a_device_has_its_convolutions_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    model = flashcaps.create_model("capsnet_tiny")
    x = draw(model, 2)
    before, expected = dict(model.named_parameters()), model(x).scores
    monkeypatch.setattr(ChannelsLast, "device", "cpu")
    model.to("cpu")
    assert all(p is before[name] for name, p in model.named_parameters())
    for moved in (model, flashcaps.create_model("capsnet_tiny").to("meta").to_empty(device="cpu")):
        for name, p in moved.named_parameters():
            last = p.ndim == 4 and isinstance(moved.get_submodule(name.rpartition(".")[0]), torch.nn.Conv2d)
            assert p.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format), name
    monkeypatch.setattr(stem, "fused", lambda x: x.is_floating_point())
    torch.testing.assert_close(model(x).scores, expected)
    optimiser = torch.optim.Adam(model.parameters(), fused=True)  # which wants gradients as weights lie
    found = gradients(model, model, x)
    assert [g.stride() for g in found] == [p.stride() for p in model.parameters() if p.grad is not None]
    optimiser.step()


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "mode"), BOTH)
def test_compiled_on_a_device(name: str, mode: str) -> None:
    """fp32, and where steps are captured, too, bf16 under autocast: as near to float64 as without the compiler.

    Not to eager fp32: convolutions multiply in TF32 by whichever algorithm each of the two picks, so that eager and
    compiled are as far from each other as both are from float64.
    """
    model, half = flashcaps.create_model(name, **MODELS[name]).cuda(), mode == "reduce-overhead"
    x = draw(model, 8, "cuda")
    double = copy.deepcopy(model).double()
    exact = [g.float() for g in gradients(double, double, x.double())]
    compiled = torch.compile(model, fullgraph=True, dynamic=False, mode=mode)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        plain = [g.clone() for g in gradients(model, model, x)]
        for _ in range(3):
            actual = gradients(compiled, model, x)
    for a, p, e in zip(actual, plain, exact, strict=True):
        assert (a - e).norm() <= 2 * (p - e).norm() + 2e-2 * e.norm() + 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_users_loop_learns_the_same_captured(name: str) -> None:
    losses = []
    for wrap in (lambda step: step, capture):
        torch.manual_seed(0)
        model = flashcaps.create_model(name, **MODELS[name]).cuda()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True)

        def step(x: Tensor, model: Any = model, optimiser: torch.optim.Adam = optimiser) -> Tensor:
            optimiser.zero_grad()
            loss: Tensor = model(x).scores.float().add(1).square().mean()
            loss.backward()
            optimiser.step()
            return loss

        run, x = wrap(step), draw(model, 8, "cuda")
        losses.append([run(x).item() for _ in range(8)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[1][-1] < losses[1][0]
