"""Explains one model: receptive fields of its capsules, the routing of an image, the drawing of a pose."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..analysis.drawings import OFFSETS
from ..analysis.figure import Run
from ..analysis.inside import children, class_votes, receptive_fields
from ..analysis.measures import MEASURES, measure
from ..data import to_float
from ..deploy.hub import model_card
from ..deploy.predict import answer_rule, class_names
from ..nn.capsules import ConvCapsules, DenseCapsules
from ..nn.trace import keeps_couplings, layers_of
from ..routing import Routed
from ..routing.math import length
from ..training.batches import Batch
from ..training.evaluate import answers
from .centering import fit
from .inputs import Refused, write_pixels
from .routing_view import DIGITS, Seen, plain, step_activations, steps, strongest, votes_in_plane
from .wording import MEASURED, formulas_of, title_of

NAMEABLE = 1.0  # standard deviations by which a dimension must move a measure to be named after it


class Explainer:
    """A trained capsule network of images. samples: uint8 (N, 28, 28), digits to measure its drawings on."""

    def __init__(self, name: str, model: Any, samples: Tensor, *, card: str = "", title: str = "") -> None:
        self.name, self.model, self.card = name, model.eval(), card
        check_model(name, model)
        self.image: tuple[int, int, int] = tuple(model.image)
        self.run = Run(model, self.batch(torch.zeros(self.image[1:], dtype=torch.uint8)), name=name)
        self.layer = self.run.layer()
        self.rule, self.threshold = answer_rule(model)
        with torch.no_grad():
            votes, top = class_votes(self.run, self.run.examples())
            self.grid, self.field = places(self.run, top, votes.shape[1])
            self.parents, self.dim, self.iterations = *votes.shape[2:], len(top.steps)
            images = torch.cat([self.batch(fit(x, *self.image[1:])).inputs for x in samples])
            routed = model.route(images)
            poses, labels = routed.pose, model.head(routed).argmax(1)
            self.poses = poses[torch.arange(len(poses)), labels]  # (N, D) of the capsules that win
            self.labels: list[int] = labels.tolist()
            self.deviations = self._deviations() if model.decoder is not None else None
        self.title = title or title_of(self.layer.name) + (", two digits" if self.pairs else "")
        self.meanings = self._meanings()

    @property
    def pairs(self) -> bool:
        return self.rule != "top1"

    @property
    def signed(self) -> bool:
        """Whether couplings are coefficients of the layer, not a distribution over parents."""
        return keeps_couplings(self.layer.routing)

    def info(self) -> dict[str, Any]:
        """The model's entry in /api/models."""
        result: dict[str, Any] | None = getattr(self.model, "config", {}).get("result")
        return {
            "name": self.name,
            "algorithm": self.layer.name,
            "title": self.title,
            "classes": list(class_names(self.model)),
            "image": list(self.image),
            "pairs": self.pairs,
            "iterations": None if self.signed else self.iterations,
            "decoder": self.model.decoder is not None,
            "pose_dim": self.dim,
            "reach": self.reach,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "result": None if result is None else error_of(result),
            "grid": list(self.grid),
            "parents": self.parents,
            "dimensions": self.meanings,
            "card": self.card,
        }

    def batch(self, pixels: Tensor) -> Batch:
        """uint8 (H, W) -> a batch of one image, grey in every channel."""
        x = to_float(pixels.to(torch.uint8)).expand(1, *self.image)
        label = torch.zeros(1, dtype=torch.long)
        return Batch(x, label, label, x)

    def seen(self, pixels: Tensor) -> Seen:
        votes, top = class_votes(self.run, self.batch(pixels))
        return Seen(votes[0], top, self.grid)

    @property
    def measure(self) -> str:
        """The number between 0 and 1 that is shown for a class capsule."""
        routing = self.layer.routing
        if routing.output_activation in ("length", "probability") and not routing.stepwise:
            return "length" if routing.output_activation == "length" else "activation"
        return "logistic score" if self.pairs else "softmax of scores"

    def as_shown(self, scores: Tensor) -> Tensor:
        """Lengths and probabilities unchanged, logits through the function of the loss."""
        if self.measure == "logistic score":
            return scores.sigmoid()
        return scores.softmax(-1) if self.measure == "softmax of scores" else scores

    @torch.no_grad()
    def route(self, pixels: Tensor) -> dict[str, Any]:
        """The answer of /api/route for an image (H, W) of the model's size."""
        if tuple(pixels.shape) != self.image[1:]:
            raise Refused(422, f"image: {self.name} expects {self.image[1]} x {self.image[2]} (height x width), got "
                               f"{pixels.shape[0]} x {pixels.shape[1]}; center=true takes any size")  # fmt: skip
        begun = time.perf_counter()
        seen = self.seen(pixels)
        out = seen.top.out
        scores = self.model.head(out)[0].float()
        given = answers(scores[None], self.rule, self.threshold)[0]
        order = scores.argsort(descending=True).tolist()
        predicted = [k for k in order if given[k]] or order[:1]
        runner_up = [k for k in order if k not in predicted][:1]
        return {
            "model": self.name,
            "shape": list(pixels.shape),
            "scores": plain(scores),
            "activation": plain(self.as_shown(scores)),
            "lengths": plain(length(out.pose[0])),
            "predicted": predicted,
            "poses": plain(out.pose[0]),
            "reconstructions": self.reconstructions(out, predicted),
            "routing": self.routing(seen, predicted + runner_up),
            "ms": round(1000 * (time.perf_counter() - begun), 2),
        }

    def routing(self, seen: Seen, classes: list[int]) -> dict[str, Any]:
        formulas = formulas_of(self.layer.name)
        activations = step_activations(self.model, seen.top, self.as_shown)
        return {
            "signed": self.signed,
            "iterations": len(seen.top.steps),
            "steps": steps(seen, activations),
            "grid": list(self.grid[1:]),
            "field": self.field,
            "presence": plain(seen.by_cell(seen.there)),
            "top": strongest(seen),
            "votes": votes_in_plane(seen, classes),
            "measure": self.measure,
            "formula": formulas.update,
            "agreement_formula": formulas.agreement,
        }

    def reconstructions(self, out: Routed, classes: list[int]) -> list[dict[str, Any]]:
        if self.model.decoder is None:
            return []
        drawn = self.model.reconstruct(out, torch.tensor([classes]))[0]
        return [{"class": k, "image": write_pixels(x)} for k, x in zip(classes, drawn, strict=True)]

    def draw(self, poses: Tensor, label: int) -> Tensor:
        """Drawings (N, C, H, W) of poses (N, D) of class capsule `label`."""
        capsules = poses.new_zeros(len(poses), self.parents, self.dim)
        capsules[:, label] = poses
        return self.run.draw(capsules, torch.full((len(poses),), label))

    def check_pose(self, pose: list[float], label: int) -> Tensor:
        if self.model.decoder is None:
            raise Refused(422, f"model: {self.name} has no decoder to draw a pose with")
        if len(pose) != self.dim:
            raise Refused(422, f"pose: expected {self.dim} numbers, got {len(pose)}")
        if not 0 <= label < self.parents:
            raise Refused(422, f"class: expected 0 to {self.parents - 1}, got {label}")
        return torch.tensor(pose, dtype=torch.float32)

    @torch.no_grad()
    def decode(self, pose: list[float], label: int) -> dict[str, Any]:
        drawn = self.draw(self.check_pose(pose, label)[None], label)[0]
        return {"image": write_pixels(drawn), "shape": list(self.image[1:])}

    @torch.no_grad()
    def dimensions(self, pose: list[float], label: int) -> dict[str, Any]:
        """Drawings with every dimension changed from -reach to reach, and the measure that it changes most."""
        pictures = self.vary(self.check_pose(pose, label), label)  # (D, 11, C, H, W)
        names = self.name_rows(pictures)
        rows = [{"dimension": d, "stands_for": names[d], "images": [write_pixels(x) for x in row]}
                for d, row in enumerate(pictures)]  # fmt: skip
        return {"rows": rows, "offsets": self.offsets, "shape": list(self.image[1:])}

    @property
    def offsets(self) -> list[float]:
        return [round(x / OFFSETS[-1] * self.reach, DIGITS) for x in OFFSETS]

    def vary(self, pose: Tensor, label: int) -> Tensor:
        """One dimension changed at a time, (D, offsets, C, H, W)."""
        moved = torch.eye(self.dim)[:, None] * torch.tensor(self.offsets)[None, :, None]  # (D, offsets, D)
        return self.draw((pose + moved).flatten(0, 1), label).unflatten(0, moved.shape[:2])

    def name_rows(self, pictures: Tensor) -> list[str | None]:
        """The measure that each row changes most, in standard deviations over digits; None below NAMEABLE."""
        assert self.deviations is not None
        values = measure(crisp(pictures.mean(2)))  # each (D, offsets)
        moved = torch.stack([(values[m][:, -1] - values[m][:, 0]) / self.deviations[m] for m in MEASURES], 1)
        best = moved.abs().max(1)
        return [MEASURED[MEASURES[m]] if size >= NAMEABLE else None
                for size, m in zip(best.values.tolist(), best.indices.tolist(), strict=True)]  # fmt: skip

    @property
    def reach(self) -> float:
        """The range of sliders: 0.25 for vectors no longer than 1 (dynamic, Fig. 4), else the deviation of poses."""
        if self.layer.routing.output_activation == "length" or len(self.poses) < 2:
            return OFFSETS[-1]
        return float(f"{max(float(self.poses.std(0).mean()), 0.01):.2g}")

    def _deviations(self) -> dict[str, Tensor]:
        """The standard deviation of each measure over the model's drawings of the samples."""
        drawn = torch.cat([self.draw(p[None], k) for p, k in zip(self.poses, self.labels, strict=True)])
        return {name: x.std().clamp(min=1e-3) for name, x in measure(crisp(drawn.mean(1))).items()}

    @torch.no_grad()
    def _meanings(self) -> list[str | None]:
        """The measure that each dimension changes in most class capsules; None if there is no majority."""
        if self.deviations is None:
            return [None] * self.dim
        first = {k: p for p, k in zip(self.poses, self.labels, strict=True)}
        found = [self.name_rows(self.vary(p, k)) for k, p in first.items()]
        said = [Counter(column).most_common(1)[0] for column in zip(*found, strict=True)]
        return [name if 2 * count > len(found) else None for name, count in said]


def crisp(pictures: Tensor) -> Tensor:
    """Drawings (..., H, W) with sharp edges, so that blur does not count as thickness."""
    top = pictures.amax((-2, -1), keepdim=True).clamp(min=1e-6)
    return (5 * (pictures / top - 0.5) + 0.5).clamp(0, 1)


def error_of(result: dict[str, Any]) -> dict[str, Any]:
    """Test error in percent, of the stored weights if they were tested again, and the split."""
    value = result.get("stored", result)["value"]
    return {"error": round(100 - value if "accuracy" in result["metric"] else value, 4), "split": result["split"]}


def check_model(name: str, model: Any) -> None:
    """Raises ValueError unless the model is a capsule network of images with a dense class layer."""
    if getattr(model, "image", None) is None:
        raise ValueError(f"{name}: expected a model of images; this one reads text")
    stack = getattr(model, "capsules", None)
    if stack is None:
        raise ValueError(f"{name}: expected a capsule network; {model.name} has no capsules to watch")
    if not isinstance(layers_of(stack)[-1], DenseCapsules):
        raise ValueError(f"{name}: expected a dense class layer; that of {model.name} is convolutional")


def places(run: Run, top: Any, capsules: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The grid of the class layer's children, (types, H, W), and the receptive field of one place.

    field: side in pixels, distance between neighbours, first pixel of the first place (negative with padding).
    Capsule layers in between widen it by their kernels. Children without places see the whole image.
    """
    assert run.model.image is not None
    side = max(run.model.image[1:])
    u, _ = children(run, run.examples())
    if top.u.ndim != 5 or u.ndim != 5:
        return (capsules, 1, 1), {"size": side, "stride": side, "offset": 0}
    field = field_of(receptive_fields(run, run.examples()), side)
    for layer in layers_of(run.stack())[:-1]:
        if isinstance(layer, ConvCapsules):
            field["offset"] -= layer.padding * field["stride"]
            field["size"] += (layer.kernel - 1) * field["stride"]
            field["stride"] *= layer.stride
    _, types, h, w, _ = top.u.shape
    return (types, h, w), field


def field_of(fields: Tensor, side: int) -> dict[str, int]:
    """size, stride and offset from the first and last row that each place sees; borders cut some of them short."""
    first, last = fields[:, 0, 0], fields[:, 0, 1]
    size = int((last - first).max()) + 1
    whole = (last - first + 1 == size).nonzero()[:, 0]
    k = int(whole[0])
    if len(whole) > 1:
        stride = int(first[whole[1]] - first[k]) // int(whole[1] - k)
    else:
        stride = max(1, (side - size) // max(1, len(first) - 1))
    return {"size": size, "stride": stride, "offset": int(first[k]) - stride * k}


def card_of(name: str, model: Any, folder: Path) -> str:
    """The card beside the weights, or a new one."""
    beside = folder / f"{name}.md"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    config = getattr(model, "config", {})
    return model_card(model, config, config.get("result", {}))
