"""The result of a run, its result.json, and the folder in which results are kept."""

import json
import os
import platform
import shlex
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .checkpoint import write_atomic
from .environment import versions
from .evaluate import Evaluation, Member
from .recipe import Recipe
from .run_folder import RunFolder, read_metrics, variant
from .step import TrainStep


def run_result(
    recipe: Recipe, run: RunFolder, step: TrainStep, test: Evaluation, weights: str, at: int
) -> dict[str, Any]:
    """The content of a run's result.json."""
    metrics = read_metrics(run.path)
    keys = ("step", "epoch", "error", "split", "test_error")
    curve = [{k: m[k] for k in keys if k in m} for m in metrics if m["kind"] == "evaluation"]
    held = [c["error"] for c in curve if c["split"] == "validation"]
    chosen = min(held, default=None) if recipe.train.select == "validation" else (held or [None])[-1]
    return make_result(
        recipe,
        test,
        hardware(step.workers.device, step.workers.world),
        validation_error_percent=None if chosen is None else round(chosen, 4),
        weights=weights,
        parameters=sum(p.numel() for p in step.model.parameters()),
        epochs=round(at / step.stream.steps, 3),
        images=at * step.stream.share.batch * step.workers.world,
        wall_s=round(run.wall_s, 2),
        command=shlex.join(run.command),
        curve=curve,
    )


def make_result(recipe: Recipe, test: Evaluation, hardware: str, **measured: Any) -> dict[str, Any]:
    """A result of a recipe: the recipe, the test, the hardware and versions, and whatever else was `measured`."""
    value, interval = test.metric(recipe.claim.metric)
    return {
        "recipe": recipe.name,
        "variant": variant(recipe),
        "overrides": list(recipe.overrides),
        "seed": recipe.train.seed,
        "data": recipe.data.name,
        "split": "test, best epoch chosen on it" if recipe.train.select == "test" else "test",
        "metric": recipe.claim.metric,
        "value": round(value, 4),
        "interval": [round(x, 4) for x in interval],
        "digit_accuracy": round(test.digit_accuracy, 4),
        "examples": test.examples,
        "hardware": hardware,
        "beside": os.environ.get("FLASHCAPS_BESIDE", ""),
        "versions": versions(),
        "commit": commit(),
        **measured,
    }


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


def hardware(device: torch.device, world: int = 1) -> str:
    """The name of the device, and how many of them there are."""
    times = f"{world} x " if world > 1 else ""
    if device.type == "cuda":
        return times + torch.cuda.get_device_name(device)
    return f"{times}CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def commit() -> str:
    """$FLASHCAPS_COMMIT, or git's commit of the sources, with "+" if files differ from it; "" if neither is known."""
    if given := os.environ.get("FLASHCAPS_COMMIT"):
        return given
    git = ["git", "-C", str(Path(__file__).parents[1])]
    asked = (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "."])
    try:
        known, changed = (subprocess.check_output([*git, *words], stderr=subprocess.DEVNULL, text=True, timeout=30)
                          for words in asked)
    except (OSError, subprocess.SubprocessError):
        return ""
    return known.strip() + "+" * bool(changed)


def keep(result: dict[str, Any], folder: Path) -> Path:
    """Write a result to FOLDER/RECIPE/VARIANT-SEED.json."""
    path = folder / result["recipe"] / f"{result['variant']}-{result['seed']}.json"
    write_atomic(path, json.dumps(result, indent=2) + "\n")
    return path


def read_results(results: Path, kind: str = "runs") -> list[dict[str, Any]]:
    """All records of one kind, a folder of results, in a fixed order."""
    runs = []
    for path in sorted((results / kind).glob("*/*.json")):
        try:
            runs.append(json.loads(path.read_text()))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: not JSON ({error}); remove it or add its run again") from None
    return runs


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 05 min."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return f"{s // 60} min {s % 60:02d} s" if s < 3600 else f"{s // 3600} h {s % 3600 // 60:02d} min"
