from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from ..deploy.export import SUFFIX, Quantised, Report, export_model, quantise
from ..deploy.predict import answer_rule, find_pictures, prepare
from ..models.shipped import FOLDER
from ..models.stored import find_weights
from ..routing.checks import check_choice
from ..training.checkpoint import load
from .common import DataRoot, Imports, RunName, Weights, say

REAL = 1000  # images of the test data to compare on


def export(
    checkpoint: RunName,
    to: Annotated[str, typer.Option(help=", ".join(SUFFIX))] = "onnx",
    out: Annotated[Path | None, typer.Option(help="the file to write (default: next to the weights)")] = None,
    inputs: Annotated[list[str] | None, typer.Option(help="pictures to compare on (default: the test data)")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="also write an int8 ONNX file and measure its accuracy")] = False,
    tolerance: Annotated[float, typer.Option(help="largest difference from PyTorch")] = 1e-4,
    weights: Weights = None,
    data: DataRoot = None,
    imports: Imports = None,
) -> None:
    """Export to a file that runs without flashcaps at any batch size; fails if it differs from PyTorch.

    \b
    flashcaps export runs/tiny-0
    flashcaps export runs/tiny-0 --to torch-export --out tiny.pt2
    flashcaps export runs/tiny-0 --int8 --inputs scans/
    """
    check_choice("--to", to, SUFFIX)
    if int8 and to != "onnx":
        raise ValueError(f"--int8: expected with --to onnx, got {to}")
    model = load(checkpoint, weights=weights)
    path = out or beside(find_weights(checkpoint, weights), SUFFIX[to])
    if out is None and path.parent == FOLDER:
        path = Path(path.name)  # shipped weights are exported to this folder, not into the package
    real, labels, why = real_inputs(model, inputs, data)
    report = export_model(model, path, to, real=real, tolerance=tolerance)
    say(describe(report, 0 if real is None else len(real)))
    if why:
        say(why)
    if int8:
        rule, threshold = answer_rule(model)
        images = torch.rand(64, *model.image) if real is None else real  # type: ignore[misc]
        cost = quantise(path, images, labels, rule=rule, threshold=threshold)
        say(describe_int8(cost, report, real is not None))


def beside(weights: Path, suffix: str) -> Path:
    """NAME.onnx beside NAME.safetensors or NAME.safetensors.xz; a copy of safetensors has another name."""
    plain = Path(str(weights).removesuffix(".xz"))
    return plain.with_name(plain.stem + ("-exported" if plain.suffix == suffix else "") + suffix)


def real_inputs(model: Any, inputs: list[str] | None, data: str | None) -> tuple[Tensor | None, Tensor | None, str]:
    """(images, labels, why there are none): the given pictures, or images of the model's test data."""
    if inputs:
        return torch.stack([prepare(p.source, model) for p in find_pictures(inputs)]), None, ""
    if "recipe" not in getattr(model, "config", {}):
        return None, None, "no real inputs: these weights name no data; --inputs compares on your pictures"
    from ..training.loader import open_sources
    from ..training.recipe import make_recipe

    try:
        sources = open_sources(make_recipe(model.config["recipe"]), data, torch.device("cpu"), None)
    except (OSError, ImportError) as error:
        return None, None, f"no real inputs: {' '.join(str(error).split())}; --inputs compares on your pictures"
    batch = sources.test.some(min(REAL, len(sources.test)))
    return batch.inputs, batch.targets, ""


def describe(report: Report, images: int) -> str:
    text = f"{report.path}: {report.size / 1e6:.2f} MB; largest difference from PyTorch {report.random:.1e} on random"
    return text + (f", {report.real:.1e} on {images:,} real images" if report.real is not None else " images")


def describe_int8(cost: Quantised, report: Report, real: bool) -> str:
    text = f"{cost.path}: {cost.size / 1e6:.2f} MB in place of {report.size / 1e6:.2f}; same answer on "
    text += f"{cost.agreement:.2f} % of {cost.images:,} {'real' if real else 'random'} images"
    if cost.error is not None and cost.error_int8 is not None:
        text += f"; error {cost.error_int8:.2f} % in place of {cost.error:.2f} % ({cost.error_int8 - cost.error:+.2f})"
    return text
