"""Several trained models as one, the mean of their scores.

    model, members = open_ensemble(["runs/capsnet_cifar10-0", "runs/capsnet_cifar10-1"])
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..models.base import Output
from .checkpoint import load
from .evaluate import Evaluation
from .recipe import Recipe, make_recipe
from .results import hardware, make_result
from .run_folder import variant


class Ensemble(nn.Module):
    """The mean of the members' scores: of lengths, activations or logits, whichever their loss takes."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if not self.members:
            raise ValueError("members: expected at least one model, got none")

    def forward(self, inputs: Tensor, **options: Any) -> Output:
        scores = [member(inputs, **options).scores.float() for member in self.members]  # each (B, K)
        return Output(torch.stack(scores).mean(0), None)


@dataclass(frozen=True)
class Member:
    """A checkpoint of the ensemble; result is what its run's result.json says, {} where there is none."""

    recipe: Recipe
    result: dict[str, Any]


def open_ensemble(
    runs: Sequence[str], *, weights: str | None = None, device: torch.device | str = "cpu"
) -> tuple[Ensemble, list[Member]]:
    """The checkpoints of one recipe, whatever their seeds, as one model."""
    models: list[Any] = [load(run, weights=weights, device=device) for run in runs]
    members = []
    for run, model in zip(runs, models, strict=True):
        path = Path(run) / "result.json"
        result = json.loads(path.read_text()) if path.is_file() else {}
        members.append(Member(make_recipe(model.config["recipe"]), result))
    for run, member in zip(runs, members, strict=True):
        if without_seed(member.recipe) != without_seed(members[0].recipe):
            raise ValueError(f"--ensemble: expected runs of one recipe that differ in their seed alone, got {runs[0]} "
                             f"({members[0].recipe.name}) and {run} ({member.recipe.name}) with other fields")
    if len({member.recipe.train.seed for member in members}) < len(members):
        raise ValueError("--ensemble: expected runs of different seeds, got one twice; train others with --seed")
    return Ensemble(models).eval(), members


def without_seed(recipe: Recipe) -> dict[str, Any]:
    """What members must have in common: everything but the seed."""
    alike = replace(recipe, train=replace(recipe.train, seed=0))
    return {k: v for k, v in alike.to_dict().items() if k not in ("overrides", "claim", "about")}


def ensemble_result(members: Sequence[Member], test: Evaluation, command: str, device: torch.device) -> dict[str, Any]:
    """A result like a run's, for the tables. epochs are each member's; images and time are summed."""
    results = [member.result for member in members]
    if not all(results):
        raise ValueError("--keep: expected folders of finished runs, got one without result.json")
    recipe, own = members[0].recipe, variant(members[0].recipe)
    return make_result(
        recipe,
        test,
        hardware(device),
        variant=",".join([own] * (own != "default") + [f"ensemble={len(members)}"]),
        seed=min(r["seed"] for r in results),
        members=[{k: r[k] for k in ("seed", "value", "interval", "commit", "command")} for r in results],
        weights=results[0]["weights"],
        parameters=sum(r["parameters"] for r in results),
        epochs=statistics.fmean(r["epochs"] for r in results),
        images=sum(r["images"] for r in results),
        wall_s=round(sum(r["wall_s"] for r in results), 2),
        beside=", ".join(sorted({r.get("beside", "") for r in results} - {""})),
        command=command,
        curve=[],
    )
