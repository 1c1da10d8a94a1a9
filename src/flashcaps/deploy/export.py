"""Export to ONNX, torch.export and safetensors. Every file is compared with PyTorch before it is kept.

    report = export_model(flashcaps.load("runs/tiny-0"), "tiny.onnx")
    run = open_exported("tiny.onnx")
    scores, pose = run(images)                # images (B, C, H, W), any B
"""

import contextlib
import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.capsules import CapsuleLayer
from ..routing.checks import import_extra
from ..training.checkpoint import load, save_weights
from ..training.evaluate import answers, evaluating, is_right
from .predict import answer_rule, class_names

SUFFIX = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
TOLERANCE = 1e-4
BATCHES = (1, 7)  # sizes to compare on: a batch axis that is fixed fails here
QUANTISED = ("Conv", "MatMul", "Gemm")  # operators with learned weights; routing stays in fp32

Run = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Report:
    """A written file and its largest difference from PyTorch, on random and on real inputs (None without any).

    Differences are relative to the largest expected number, if that is above 1.
    """

    path: Path
    random: float
    real: float | None
    size: int

    @property
    def difference(self) -> float:
        return max(self.random, self.real or 0.0)


class Deployed(nn.Module):
    """images (B, C, H, W) -> (scores (B, K), pose (B, K, D)), or (scores,) of a network without class capsules.

    It routes by the reference, since other runtimes do not have the fused forms.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
        for layer in self.model.modules():
            if isinstance(layer, CapsuleLayer):
                layer.backend = "reference"

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return outputs(self.model(images))


def outputs(output: Any) -> tuple[Tensor, ...]:
    """The tensors of a model's answer: scores and poses of an `Output`, pose and activation of a `Routed`."""
    if isinstance(output, Tensor):
        return (output,)
    if hasattr(output, "scores"):
        return (output.scores,) if output.routed is None else (output.scores, output.routed.pose)
    return tuple(x for x in output[:2] if x is not None)


def export_model(
    model: nn.Module,
    path: str | os.PathLike[str],
    to: str | None = None,
    *,
    image: tuple[int, int, int] | None = None,
    real: Tensor | None = None,
    tolerance: float = TOLERANCE,
) -> Report:
    """Write `model` to a file and compare it with PyTorch; a file that differs by more than `tolerance` is not kept.

    to: "onnx", "torch-export" or "safetensors", by default from the suffix. image: (C, H, W), for a model without an
    attribute `image`. real: images of the data, (B, C, H, W), to compare on in addition to random ones.
    """
    path = Path(path)
    to = to or next((name for name, suffix in SUFFIX.items() if path.suffix == suffix), "")
    if to not in SUFFIX:
        raise ValueError(f"to: expected one of {', '.join(SUFFIX)}, got {to or path.name!r}")
    if not path.name or path.is_dir():
        raise ValueError(f"{path}: expected a file to write, got a folder; {path / f'model{SUFFIX[to]}'} would be one")
    if not tolerance >= 0:
        raise ValueError(f"tolerance: expected a number of at least 0, got {tolerance:g}")
    shape = image or getattr(model, "image", None)
    if shape is None and hasattr(model, "presence"):
        raise ValueError(f"model: {getattr(model, 'name', 'this one')} reads hidden states of text, and only models of "
                         "images are exported; save_pretrained shares it as it is")  # fmt: skip
    if shape is None:
        raise ValueError("image: expected (C, H, W), since this model has no attribute image; give image=")
    part = path.with_name(f".part-{path.stem}{SUFFIX[to]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        WRITERS[to](model, part, shape)
        run = open_exported(part)
        generator = torch.Generator().manual_seed(0)
        random = difference(model, run, (torch.rand(n, *shape, generator=generator) for n in BATCHES))
        seen = None if real is None else difference(model, run, real.split(64))
        report = Report(path, random, seen, part.stat().st_size)
        if not report.difference <= tolerance:
            raise RuntimeError(f"{path}: {to} differs from PyTorch by {report.difference:.1e}, more than "
                               f"{tolerance:.0e}, and was not kept; safetensors are exact")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return report


def difference(model: nn.Module, run: Run, batches: Iterable[Tensor]) -> float:
    """The largest difference between `model` and `run`, over all outputs; NaN if either has one."""
    worst, device = torch.zeros(()), next(model.parameters()).device
    with evaluating(model):
        for images in batches:
            expected = outputs(model(images.to(device)))
            for a, b in zip(run(images.cpu()), expected, strict=True):
                b = b.cpu()
                if a.shape != b.shape:
                    raise RuntimeError(f"exported file: expected {tuple(b.shape)}, got {tuple(a.shape)}")
                worst = torch.maximum(worst, (a - b).abs().max() / b.abs().max().clamp(min=1))
    return float(worst)


def _program(model: nn.Module, shape: tuple[int, int, int]) -> Any:
    batch = torch.export.Dim("batch", min=1)
    example = torch.rand(2, *shape)  # torch.export takes batches of 0 and 1 for constants
    return torch.export.export(Deployed(model), (example,), dynamic_shapes={"images": {0: batch}})


def write_onnx(model: nn.Module, path: Path, shape: tuple[int, int, int]) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(name, "export", "ONNX")
    program = _program(model, shape)
    with _quiet():
        written = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["images"],
            output_names=["scores", "pose"][: len(program.graph_signature.user_outputs)],
            custom_translation_table=_translations(),
            optimize=False,  # the optimiser replaces an added 1e-8, the floor of em's variances, by 0
            verbose=False,
        )
    assert written is not None
    written.model.metadata_props.update(metadata(model, shape))
    written.save(str(path))


def metadata(model: nn.Module, shape: tuple[int, int, int]) -> dict[str, str]:
    """What a reader of the file must know to prepare a picture and to name an answer, each value as JSON."""
    rule, threshold = answer_rule(model)
    known = {"name": getattr(model, "name", ""), "image": list(shape), "layout": "batch, channels, height, width",
             "scale": 1 / 255, "pixels": "bytes times scale, from 0 to 1", "answer": rule, "threshold": threshold}
    if hasattr(model, "classes"):
        known["class_names"] = list(class_names(model))
    return {key: json.dumps(value) for key, value in known.items()}


def _translations() -> dict[Any, Any]:
    """Logistic functions that are exact in the tails: onnxruntime's Sigmoid is a polynomial, wrong by a factor below
    -15, and em takes its logarithm."""
    op = import_extra("onnxscript", "export", "ONNX").opset18

    def log_sigmoid(self: Any) -> Any:
        return op.Neg(op.Softplus(op.Neg(self)))

    def sigmoid(self: Any) -> Any:
        return op.Exp(op.Neg(op.Softplus(op.Neg(self))))

    return {torch.ops.aten.sigmoid.default: sigmoid, torch.ops.aten.log_sigmoid.default: log_sigmoid}


def write_safetensors(model: nn.Module, path: Path, shape: tuple[int, int, int]) -> None:
    if not hasattr(model, "name"):
        raise ValueError("model: safetensors store the name of the model, and create_model did not make this one")
    save_weights(path, model, getattr(model, "config", {}))


WRITERS: dict[str, Callable[[nn.Module, Path, tuple[int, int, int]], None]] = {
    "onnx": write_onnx,
    "torch-export": lambda model, path, shape: torch.export.save(_program(model, shape), path),
    "safetensors": write_safetensors,
}


def open_exported(path: str | os.PathLike[str]) -> Run:
    """A function from images (B, C, H, W) on the CPU to the outputs of an exported file."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; export_model or `flashcaps export` writes one")
    if path.suffix == ".onnx":
        runtime = import_extra("onnxruntime", "export", "ONNX")
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors only
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda images: tuple(torch.from_numpy(x) for x in session.run(None, {name: images.numpy()}))
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    model = load(path)
    return torch.no_grad()(lambda images: outputs(model(images)))


@dataclass(frozen=True)
class Quantised:
    """An int8 file. agreement: percent of answers equal to those of the file it was made from.

    error, error_int8: percent of wrong answers before and after, if labels were given.
    """

    path: Path
    size: int
    agreement: float
    images: int
    error: float | None = None
    error_int8: float | None = None


def quantise(
    path: str | os.PathLike[str],
    images: Tensor,
    labels: Tensor | None = None,
    *,
    rule: str = "top1",
    threshold: float = 0.5,
) -> Quantised:
    """Writes an ONNX file with int8 weights, and measures the cost on `images` (B, C, H, W)."""
    source = Path(path)
    if source.suffix != ".onnx":
        raise ValueError(f"--int8: expected an .onnx file, got {source.name}; use --to onnx")
    tools = import_extra("onnxruntime.quantization", "export", "int8")
    target = source.with_name(f"{source.stem}.int8.onnx")
    with _quiet():
        tools.quantize_dynamic(source, target, op_types_to_quantize=list(QUANTISED), weight_type=tools.QuantType.QUInt8)
    before, after = (torch.cat([run(x)[0] for x in images.split(64)]) for run in map(open_exported, (source, target)))
    answer = before.argmax(1) if rule == "top1" else answers(before, rule, threshold).float()
    agreement = 100 * float(is_right(after, answer, rule, threshold).float().mean())
    errors: list[float] = []
    if labels is not None:
        errors = [100 - 100 * float(is_right(x, labels, rule, threshold).float().mean()) for x in (before, after)]
    return Quantised(target, target.stat().st_size, agreement, len(images), *errors)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporters' logs and warnings."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
