"""What a figure is made from, a checkpoint with its data and the records to compare it with, and what it gives."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import Split
from ..models import create_model
from ..models.base import Model, Output
from ..models.stored import find_weights
from ..nn.capsules import CapsuleLayer, DenseCapsules
from ..nn.stack import CapsuleStack
from ..nn.trace import LayerTrace, iterated, iterations_of
from ..routing import Routed
from ..training.batches import Batch, spread
from ..training.checkpoint import load
from ..training.distributed import find_device
from ..training.evaluate import forward, is_right, score_threshold
from ..training.loader import open_sources
from ..training.recipe import Recipe, make_recipe
from ..training.results import read_results
from ..training.routing_measure import traced
from ..training.run_folder import read_metrics

COUNT = 500  # test examples of a figure
SENTENCES = 16  # the hidden states of one text take megabytes
ATTACKS = "robustness"  # folder of records of attacks, under results/


class Drawn(NamedTuple):
    """data: tensors and numbers that are drawn; figure: a matplotlib Figure; caption: what it shows of this model."""

    data: dict[str, Any]
    figure: Any
    caption: str


class DoesNotApply(ValueError):
    """One line that says why a figure cannot be drawn for this model, and what it needs."""


@dataclass
class Run:
    """A trained model and its data. In a notebook Run(model, Batch(images, labels, labels, images)) is enough.

    batch: test examples; `missing` says why there are none. rule, threshold: how scores become an answer. records:
    finished runs to compare with; robustness: stored results of attacks on them. folder: of the run, if it has one.
    """

    model: Model
    batch: Batch | None = None
    missing: str = "no test examples were given"
    name: str = "model"
    class_names: tuple[str, ...] = ()
    rule: str = "top1"
    threshold: float = 0.5
    recipe: Recipe | None = None
    folder: Path | None = None
    split: Split | None = None  # the whole test set, with its `info` on each image
    crop: int = 0  # side of the centre crop that the model sees; 0 is the whole image
    tokens: list[list[str]] | None = None  # the tokens of each text
    metrics: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    robustness: list[dict[str, Any]] = field(default_factory=list)

    def examples(self) -> Batch:
        if self.batch is None:
            raise DoesNotApply(f"test examples are needed: {self.missing}")
        return self.batch

    def single(self) -> Batch:
        """Examples of one class each."""
        batch = self.examples()
        if batch.targets.ndim != 1:
            raise DoesNotApply("images with one class each are needed; these hold several")
        return batch

    def first(self, count: int) -> Batch:
        """The first `count` examples."""
        batch = self.examples()
        return take(batch, torch.arange(min(count, len(batch.inputs))))

    def images(self) -> Tensor:
        if self.model.image is None:
            raise DoesNotApply("images are needed; this model reads hidden states of text")
        return self.examples().inputs

    def stack(self) -> CapsuleStack:
        capsules = getattr(self.model, "capsules", None)
        if not isinstance(capsules, CapsuleStack):
            raise DoesNotApply(f"capsules are needed; {self.model.name} is a plain network")
        return capsules

    def layer(self) -> CapsuleLayer:
        """The class layer."""
        layer = self.stack().layers[-1]
        assert isinstance(layer, CapsuleLayer)
        return layer

    def need_decoder(self) -> None:
        self.stack()
        if self.model.decoder is None:
            raise DoesNotApply(f"a decoder is needed; {self.model.name} was built without one (decoder=true)")

    def trace(self, batch: Batch, iterations: int | None = None) -> list[LayerTrace]:
        """Every capsule layer of the model, from the lowest. The last one's `out` is what the model's head reads."""
        with iterated(self.stack(), iterations):
            return traced(self.model, batch)

    def class_votes(self, batch: Batch, iterations: int | None = None) -> tuple[Tensor, LayerTrace]:
        """Every vote for every class capsule, (B, I, J, D), and the trace of the class layer."""
        top = self.trace(batch, iterations)[-1]
        if not isinstance(top.layer, DenseCapsules):
            raise DoesNotApply("a dense class layer is needed; this one is convolutional")
        return top.layer.votes(top.u), top

    def receptive_fields(self) -> Tensor:
        """The pixels that primary capsules at each place see, (H, W, 4): first row, last row, first and last column.

        Computed from the gradient of one place's poses with respect to the image, so it works for any backbone.
        """
        self.stack()
        network: Any = self.model
        with torch.enable_grad():
            x = torch.rand_like(self.images()[:1]).requires_grad_()
            pose = network.primary(network.backbone(x)).pose[0].abs().sum((0, 3))  # (H, W)
            seen = [torch.autograd.grad(p, x, retain_graph=True)[0].abs().sum((0, 1)) > 0 for p in pose.flatten()]
        return torch.tensor([extent(ink) for ink in seen]).view(*pose.shape, 4)

    @cached_property
    def output(self) -> Output:
        """Scores and poses of class capsules, of all examples."""
        batch = self.examples()
        with torch.no_grad():
            parts = [forward(self.model, take(batch, rows)) for rows in torch.arange(len(batch.inputs)).split(100)]
        routed = None if parts[0].routed is None else Routed(torch.cat([part.routed.pose for part in parts]))
        return Output(torch.cat([part.scores for part in parts]), routed)

    @property
    def poses(self) -> Tensor:
        """Class capsules of all examples, (N, J, D)."""
        routed = self.output.routed
        assert routed is not None
        return routed.pose

    def draw(self, poses: Tensor, classes: Tensor) -> Tensor:
        """What the decoder draws: poses (N, J, D), classes (N,) -> (N, C, H, W), or (N, M) -> (N, M, C, H, W)."""
        model: Any = self.model
        return model.reconstruct(Routed(poses), classes)

    @property
    def right(self) -> Tensor:
        """(N,) bool."""
        return is_right(self.output.scores, self.examples().targets, self.rule, self.threshold)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def others(self) -> "list[Run]":
        """This run with the capsule networks of the other runs whose folders are known."""
        mine = self.folder.resolve() if self.folder else None
        folders = [r["folder"] for r in self.records if "folder" in r and Path(r["folder"]).resolve() != mine]
        models: list[Any] = [load(folder, device=self.device) for folder in folders]
        return [replace(self, model=model) for model in models if hasattr(model, "capsules")]

    def class_name(self, k: int) -> str:
        return self.class_names[k] if k < len(self.class_names) else str(k)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def take(batch: Batch, rows: Tensor) -> Batch:
    """The examples at `rows`."""
    return batch._replace(**{name: x[rows] for name, x in batch._asdict().items() if x is not None})


def extent(ink: Tensor) -> tuple[int, int, int, int]:
    """The first and last row, and the first and last column, with ink (H, W)."""
    rows, columns = ink.any(1).nonzero()[:, 0], ink.any(0).nonzero()[:, 0]
    if not len(rows):  # every ReLU below is off for this input
        return 0, ink.shape[0] - 1, 0, ink.shape[1] - 1
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


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
              metrics=read_metrics(folder), records=records, robustness=read_results(Path(results), ATTACKS))
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
    run.split, run.crop = held.split, recipe.augment.crop
    return run


def gather(results: str | Path, folders: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Finished runs: those in `results`, and those in `folders` with their metrics and folder."""
    found = read_results(Path(results))
    for folder in folders:
        inner = sorted(Path(folder).glob("*/result.json"))
        for path in [Path(folder) / "result.json"] if (Path(folder) / "result.json").is_file() else inner:
            record = json.loads(path.read_text())
            found = [r for r in found if any(r[k] != record[k] for k in ("recipe", "variant", "seed"))]
            found.append(record | {"metrics": read_metrics(path.parent), "folder": str(path.parent)})
    return found


def routed_by(model: str, overrides: Mapping[str, Any]) -> tuple[str, int]:
    """The algorithm of a model's class layer and its iterations, ("", 0) for a plain network."""
    with torch.device("meta"):  # no weight is allocated
        stack = getattr(create_model(model, **overrides), "capsules", None)
    return (stack.capsule_layers()[-1].name, iterations_of(stack)) if isinstance(stack, CapsuleStack) else ("", 0)


def accuracy(record: dict[str, Any]) -> float:
    """In percent, whether accuracy or error was stored."""
    return record["value"] if "accuracy" in record["metric"] else 100 - record["value"]
