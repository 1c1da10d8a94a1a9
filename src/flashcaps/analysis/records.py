"""Opens a checkpoint with its data and the records of finished runs and attacks to compare it with."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..models import create_model
from ..models.stored import find_weights
from ..nn.stack import CapsuleStack
from ..nn.trace import iterations_of
from ..training.batches import spread
from ..training.checkpoint import load
from ..training.distributed import find_device
from ..training.evaluate import score_threshold
from ..training.loader import open_sources
from ..training.recipe import make_recipe
from ..training.results import read_results
from ..training.run_folder import read_metrics
from .figure import Run

COUNT = 500  # test examples of a figure
SENTENCES = 16  # the hidden states of one text take megabytes
ATTACKS = "robustness"  # folder of records of attacks, under results/


def open_run(
    checkpoint: str | Path,
    *,
    data: str | None = None,
    results: str | Path = "results",
    beside: Iterable[str | Path] = (),
    device: str = "cpu",
    count: int = COUNT,
) -> Run:
    """The run of a folder, a weights file or a shipped name, with `count` examples of its test data.

    data: root of data sets. results: folder of stored results. beside: run folders, or folders of run folders, for
    figures that compare runs. Without test data, the figures that need them are not drawn.
    """
    chosen = find_device(device)
    model: Any = load(checkpoint, device=chosen)
    recipe = make_recipe(model.config["recipe"]) if "recipe" in model.config else None
    path = Path(checkpoint)
    folder = path if path.is_dir() else find_weights(checkpoint).parent
    known = (folder / "config.json").is_file()
    records = gather(results, [*beside, *([folder] if known else [])])
    run = Run(model, name=path.name or str(path), recipe=recipe, folder=folder if known else None,
              metrics=read_metrics(folder), records=records, robustness=read_attacks(Path(results)))
    if recipe is None:
        run.missing = "the checkpoint names no recipe, so its data are unknown"
        return run
    run.threshold = score_threshold(recipe.loss.kind)
    try:
        sources = open_sources(recipe, data, chosen, None)
    except (OSError, ValueError, ImportError) as error:
        run.missing = " ".join(str(error).split())
        return run
    held: Any = sources.test
    run.rule, run.class_names = held.rule, sources.dataset.class_names
    if hasattr(held, "phrases"):
        count = min(count, SENTENCES)
        ids = held.phrases.ids[spread(len(held), count).to(held.phrases.ids.device)]
        run.tokens = [held.phrases.transformer.tokenizer.convert_ids_to_tokens(row.tolist()) for row in ids]
    run.batch = held.some(min(count, len(held)))
    run.split, run.crop = getattr(held, "split", None), getattr(held, "crop", 0)
    return run


def gather(results: str | Path, folders: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Finished runs: those in `results`, and those in `folders` with their metrics and folder."""
    found = read_results(Path(results))
    for folder in folders:
        inner = sorted(Path(folder).glob("*/result.json"))
        for path in [Path(folder) / "result.json"] if (Path(folder) / "result.json").is_file() else inner:
            record = json.loads(path.read_text())
            same = ("recipe", "variant", "seed")
            found = [r for r in found if any(r[k] != record[k] for k in same)]
            found.append(record | {"metrics": read_metrics(path.parent), "folder": str(path.parent)})
    return found


def read_attacks(results: Path) -> list[dict[str, Any]]:
    """All stored records of attacks, in a fixed order."""
    return [json.loads(path.read_text()) for path in sorted((results / ATTACKS).glob("*/*.json"))]


def routed_by(model: str, overrides: Mapping[str, Any]) -> tuple[str, int]:
    """The algorithm of a model's class layer and its iterations, ("", 0) for a plain network."""
    with torch.device("meta"):  # no weight is allocated
        stack = getattr(create_model(model, **overrides), "capsules", None)
    return (stack.capsule_layers()[-1].name, iterations_of(stack)) if isinstance(stack, CapsuleStack) else ("", 0)


def accuracy(record: dict[str, Any]) -> float:
    """In percent, whether accuracy or error was stored."""
    return record["value"] if "accuracy" in record["metric"] else 100 - record["value"]
