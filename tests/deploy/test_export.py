"""An exported file gives PyTorch's numbers at any batch size, or is not there."""

import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import flashcaps
from flashcaps.deploy import export
from flashcaps.deploy.export import SUFFIX, Report, difference, export_model, open_exported, outputs, quantise
from flashcaps.routing import ROUTING
from tests.docs.test_own_tensors import Net


def network(routing: str = "dynamic") -> Any:
    """Small, but with couplings far from uniform and scores far from zero."""
    torch.manual_seed(0)
    model: Any = flashcaps.create_model(
        "capsnet_tiny", routing=routing, iterations=2, image=(1, 16, 16), classes=4, decoder=False,
        backbone={"channels": 8}, primary={"types": 4, "kernel": 3},
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model.eval()


def images(count: int, seed: int = 3) -> Tensor:
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """The report of an exported network, made once for each algorithm: exporting takes seconds."""
    folder = tmp_path_factory.mktemp("onnx")
    return cache(lambda routing: export_model(network(routing), folder / f"{routing}.onnx", real=images(3)))


@torch.no_grad()
def assert_same(path: Path, model: nn.Module, tolerance: float) -> None:
    run = open_exported(path)
    for batch in (1, 7):
        scores, pose = outputs(model(images(batch)))
        assert pose.std() > 1e-2
        torch.testing.assert_close(run(images(batch)), (scores, pose), rtol=0, atol=tolerance)


@pytest.mark.parametrize("routing", ROUTING)
def test_onnx_agrees_with_pytorch(routing: str, onnx_file: Callable[[str], Report]) -> None:
    report = onnx_file(routing)
    assert report.difference <= 1e-4
    assert report.size == report.path.stat().st_size
    assert_same(report.path, network(routing), 1e-4)
    session = importlib.import_module("onnxruntime").InferenceSession(report.path)  # which knows no flashcaps
    told = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
    assert told["class_names"] == ["0", "1", "2", "3"]
    assert (told["image"], told["scale"], told["answer"]) == ([1, 16, 16], 1 / 255, "top1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["em_smallnorb", "attention_simple_cifar10", "heinsen_smallnorb", "capsnet_mnist"])
def test_the_papers_networks_agree_in_onnx(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert export_model(flashcaps.create_model(name), tmp_path / "m.onnx").difference <= 1e-4


@pytest.mark.parametrize("to", ["torch-export", "safetensors"])
def test_other_files_agree_with_pytorch(to: str, tmp_path: Path) -> None:
    model = network("em")
    path = tmp_path / f"m{SUFFIX[to]}"
    assert export_model(model, path, to, real=images(3)).difference <= 1e-5
    assert_same(path, model, 1e-5)


def test_a_module_of_ones_own(tmp_path: Path) -> None:
    net = Net().eval()
    assert net.capsules.backend == "auto"
    report = export_model(net, tmp_path / "net.pt2", image=(1, 16, 16))
    assert report.real is None
    assert report.difference <= 1e-5
    assert net.capsules.backend == "auto"  # the user's own is left alone
    with pytest.raises(ValueError, match="image: expected"):
        export_model(net, tmp_path / "net.pt2")
    with pytest.raises(ValueError, match="create_model did not make"):
        export_model(net, tmp_path / "net.safetensors", image=(1, 16, 16))


def test_a_file_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: nn.Module, path: Path, shape: Any) -> None:
        other = network()
        with torch.no_grad():
            other.capsules.layers[0].weight.add_(0.01)
        export.write_safetensors(other, path, shape)

    monkeypatch.setitem(export.WRITERS, "safetensors", wrong)
    with pytest.raises(RuntimeError, match=r"differs from PyTorch by .*, more than 1e-04, and was not kept"):
        export_model(network(), tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
    assert export_model(network(), tmp_path / "m.safetensors", tolerance=0.5).random > 1e-4


def test_differences_are_found_anywhere() -> None:
    model = network()
    batch = images(2)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        scores, pose = outputs(model(x))
        return scores, pose.clone().index_fill_(1, torch.tensor([3]), float("nan"))

    assert difference(model, lambda x: outputs(model(x)), [batch]) == 0
    assert difference(model, run, [batch]) != difference(model, run, [batch])  # NaN
    with pytest.raises(RuntimeError, match="expected"):
        difference(model, lambda x: tuple(y[:1] for y in outputs(model(x))), [batch])


def test_logistic_functions_stay_exact_in_the_tails_and_small_numbers_are_not_taken_for_zero(tmp_path: Path) -> None:
    class Delicate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.scale = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.tensor(1e-8))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            tails = 160 * (x.flatten(1) - 0.5) + self.shift
            floor = (self.scale * x.flatten(1) + 1e-8).log()  # em's floor under sums and variances
            return torch.cat([F.logsigmoid(tails), tails.sigmoid().clamp(min=1e-30).log()]), floor

    assert export_model(Delicate(), tmp_path / "t.onnx", image=(1, 16, 16)).difference <= 1e-6


def test_int8_says_what_it_costs(onnx_file: Callable[[str], Report]) -> None:
    model, path = network(), onnx_file("dynamic").path
    x = images(40)
    with torch.no_grad():
        labels = model(x).scores.argmax(1)
    wrong = (labels + (torch.arange(40) < 10)) % 4
    cost = quantise(path, x, wrong)
    assert cost.path.name == "dynamic.int8.onnx"
    assert cost.error == 25.0
    assert cost.error_int8 is not None
    assert cost.agreement >= 90
    assert abs(cost.error_int8 - cost.error) <= 100 - cost.agreement + 1e-3
    onnx = importlib.import_module("onnx")
    kinds = {node.op_type for node in onnx.load(cost.path).graph.node}
    assert "ConvInteger" in kinds
    assert quantise(path, x).error is None
    with pytest.raises(ValueError, match="--to onnx"):
        quantise(path.with_suffix(".pt2"), x)


def test_what_cannot_be_exported_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="to: expected one of onnx"):
        export_model(network(), tmp_path / "m.tflite")
    with pytest.raises(ValueError, match=r"reads hidden states of text.*save_pretrained"):
        export_model(flashcaps.create_model("heinsen_sst2", layers=2, width=4), tmp_path / "m.onnx")
    monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ImportError, match=r"-m pip install 'onnx>"):
        export_model(network(), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
