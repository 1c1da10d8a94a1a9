"""What is known of a model before it sees a drawing: where its capsules look, what its pose's dimensions stand for."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..analysis.drawings import OFFSETS, measure, perturb
from ..analysis.figure import Run, accuracy
from ..data import to_float
from ..deploy.hub import model_card
from ..deploy.predict import answer_rule, class_names
from ..nn.capsules import ConvCapsules
from ..nn.trace import iterations_of, keeps_couplings
from ..training.batches import Batch

MEASURED = {
    "thickness": "stroke thickness",
    "skew": "slant",
    "width": "width",
    "height": "height",
    "area": "amount of ink",
}
NAMEABLE = 1.0  # standard deviations by which a dimension must move a measure to be named after it


def place(digit: Tensor, height: int, width: int) -> Tensor:
    """A digit in the middle of a model's image; on a smaller one its margin is lost. (..., 28, 28) -> (..., H, W)"""
    top, left = (height - digit.shape[-2]) // 2, (width - digit.shape[-1]) // 2
    return F.pad(digit, (left, width - digit.shape[-1] - left, top, height - digit.shape[-2] - top))


def batch_of(model: Any, digits: Tensor) -> Batch:
    """uint8 (N, 28, 28) -> images of the model's size, grey in every channel."""
    images = to_float(place(digits, *model.image[1:]))[:, None].expand(-1, *model.image)
    labels = torch.zeros(len(images), dtype=torch.long)
    return Batch(images, labels, labels, images)


@torch.no_grad()
def facts_of(name: str, model: Any, digits: Tensor, *, card: str = "", own: bool = False) -> dict[str, Any]:
    """The header of a model's file, less its layers. digits: uint8 (N, 28, 28), to measure its drawings on.

    `info` is the model's entry in the list of models. own: a user's model, whose title has its name.
    """
    run = Run(model.eval(), batch_of(model, digits), name=name)
    layer, (rule, threshold) = run.layer(), answer_rule(model)
    routing, pairs = layer.routing, rule != "top1"
    signed = keeps_couplings(routing)
    grid, field = grid_and_field(run)
    labels = run.output.scores.argmax(1)
    poses = run.poses[torch.arange(len(labels)), labels]  # of the capsules that win, (N, D)
    reach = OFFSETS[-1]  # of sliders: for vectors no longer than 1 (dynamic, Fig. 4), else the deviation of poses
    if routing.output_activation != "length" and len(poses) > 1:
        reach = float(f"{max(float(poses.std(0).mean()), 0.01):.2g}")
    offsets = [round(x / OFFSETS[-1] * reach, 5) for x in OFFSETS]
    result, tested = getattr(model, "config", {}).get("result"), None
    if result is not None:
        error = 100 - accuracy(result | result.get("stored", {}))  # of the stored weights, if they were tested again
        tested = {"error": round(error, 4), "split": result["split"]}
    if routing.output_activation in ("length", "probability") and not routing.stepwise:
        shown = "length" if routing.output_activation == "length" else "activation"
    else:
        shown = "logistic score" if pairs else "softmax of scores"
    return {
        "info": {
            "name": name,
            "algorithm": layer.name,
            "title": routing.title + (f": {name}" if own else ", two digits" if pairs else ""),
            "classes": list(class_names(model)),
            "image": list(model.image),
            "pairs": pairs,
            "iterations": None if signed else iterations_of(run.stack()),
            "decoder": model.decoder is not None,
            "pose_dim": layer.out_dim,
            "reach": reach,
            "parameters": run.parameters,
            "result": tested,
            "grid": list(grid),
            "parents": layer.parents,
            "dimensions": dimension_names(run, labels, offsets),
            "card": card,
        },
        "rule": rule,
        "threshold": threshold,
        "signed": signed,
        "measure": shown,
        "field": field,
        "offsets": offsets,
    }


def dimension_names(run: Run, labels: Tensor, offsets: list[float]) -> list[str | None]:
    """The measure that each dimension of a pose stands for, if any; a name is given once."""
    if run.model.decoder is None:
        return [None] * run.poses.shape[2]
    drawn = crisp(run.draw(run.poses, labels).mean(1))
    deviations = {name: x.std().clamp(min=1e-3) for name, x in measure(drawn).items()}
    one_each = {k: torch.tensor([row]) for row, k in enumerate(labels.tolist())}  # a digit of each class
    ends = (offsets[0], offsets[-1])
    moved = [perturb(run, row, k, ends)[0].mean(2) for k, row in one_each.items()]  # (D, 2, H, W)
    return names_of(torch.stack([effects_on(pictures, deviations) for pictures in moved]).mean(0))


def effects_on(pictures: Tensor, deviations: dict[str, Tensor]) -> Tensor:
    """How far each measure is moved from the first to the last picture of a row (D, N, H, W), in deviations: (D, M)."""
    values = measure(crisp(pictures))
    return torch.stack([((values[m][:, -1] - values[m][:, 0]) / deviations[m]).abs() for m in MEASURED], 1)


def names_of(effects: Tensor) -> list[str | None]:
    """Each measure names the dimension that moves it most, if that is what this dimension moves most. (D, M)"""
    names: list[str | None] = [None] * len(effects)
    for m, name in enumerate(MEASURED.values()):
        d = int(effects[:, m].argmax())
        if effects[d, m] >= NAMEABLE and int(effects[d].argmax()) == m:
            names[d] = name
    return names


def crisp(pictures: Tensor) -> Tensor:
    """Drawings (..., H, W) with sharp edges, so that blur does not count as thickness."""
    top = pictures.amax((-2, -1), keepdim=True).clamp(min=1e-6)
    return (5 * (pictures / top - 0.5) + 0.5).clamp(0, 1)


def grid_and_field(run: Run) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The grid of the class layer's children, (types, H, W), and the receptive field of one place.

    field: side in pixels, distance between neighbours, first pixel of the first place (negative with padding).
    Capsule layers in between widen it by their kernels. Children without places see the whole image.
    """
    assert run.model.image is not None
    side = max(run.model.image[1:])
    votes, top = run.class_votes(run.first(1))
    if top.u.ndim != 5:
        return (votes.shape[1], 1, 1), {"size": side, "stride": side, "offset": 0}
    fields = run.receptive_fields()
    first, last = fields[:, 0, 0], fields[:, 0, 1]  # rows of pixels that each row of places sees
    size = int((last - first).max()) + 1
    whole = (last - first + 1 == size).nonzero()[:, 0]  # those that no border cuts short
    k = int(whole[0])
    stride = max(1, (side - size) // max(1, len(first) - 1))
    if len(whole) > 1:
        stride = int(first[whole[1]] - first[k]) // int(whole[1] - k)
    field = {"size": size, "stride": stride, "offset": int(first[k]) - stride * k}
    for layer in run.stack().capsule_layers()[:-1]:
        if isinstance(layer, ConvCapsules):
            field["offset"] -= layer.padding * field["stride"]
            field["size"] += (layer.kernel - 1) * field["stride"]
            field["stride"] *= layer.stride
    _, types, h, w, _ = top.u.shape
    return (types, h, w), field


def card_of(name: str, model: Any, folder: Path) -> str:
    """The card beside the weights, or a new one."""
    beside = folder / f"{name}.md"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    config = getattr(model, "config", {})
    return model_card(model, config, config.get("result", {}))
