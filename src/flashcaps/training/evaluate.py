"""Evaluation of a model, or of an ensemble: the error with its 95 % interval, and the counts of every class."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.base import Output
from .batches import Batch, Held
from .checkpoint import load
from .recipe import Claim, Recipe, make_recipe

if TYPE_CHECKING:
    from .routing_measure import RoutingMeasure

Z95 = 1.959963984540054  # the normal distribution's 97.5 % point


class Label(NamedTuple):
    """Counts of one class where images have several: images that have it, answers that name it, and both at once.

    Precision, recall and F1 are 0 where they would divide by 0.
    """

    present: int
    answered: int
    found: int

    @property
    def precision(self) -> float:
        """Percent of the answers that are right."""
        return 100 * self.found / max(self.answered, 1)

    @property
    def recall(self) -> float:
        """Percent of the images with the class that were found."""
        return 100 * self.found / max(self.present, 1)

    @property
    def f1(self) -> float:
        return 200 * self.found / max(self.present + self.answered, 1)


@dataclass(frozen=True)
class Evaluation:
    """Counts on `examples` examples, and percentages of them.

    With one class an image, confusion[t][p] counts the examples of class t that are answered p. With several, labels
    has the counts of each class, and an example is right only if its answer is exactly its labels.
    """

    examples: int
    wrong: int
    rule: str = "top1"
    confusion: tuple[tuple[int, ...], ...] = ()
    labels: tuple[Label, ...] = ()
    routing: RoutingMeasure | None = None  # where it was asked for

    @property
    def error(self) -> float:
        return 100 * self.wrong / self.examples

    @property
    def accuracy(self) -> float:
        """Percent of right examples; with several labels, the exact match."""
        return 100 * (self.examples - self.wrong) / self.examples

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the error."""
        low, high = wilson(self.wrong, self.examples)
        return 100 * low, 100 * high

    @property
    def every_label(self) -> Label:
        """The counts of all labels together."""
        return Label(*(sum(counts) for counts in zip(*self.labels, strict=True))) if self.labels else Label(0, 0, 0)

    @property
    def digit_accuracy(self) -> float:
        """Percent of the digits (or other labels) in the images that were found."""
        return self.every_label.recall if self.labels else self.accuracy

    def metric(self, name: str) -> tuple[float, tuple[float, float]]:
        """The value and interval of "test_error_percent" or "test_accuracy_percent"."""
        low, high = self.interval
        return (self.accuracy, (100 - high, 100 - low)) if "accuracy" in name else (self.error, (low, high))

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self) | {"error": self.error, "accuracy": self.accuracy, "interval": self.interval,
                                "digit_accuracy": self.digit_accuracy}
        found["labels"] = [label._asdict() | {"precision": label.precision, "recall": label.recall, "f1": label.f1}
                           for label in self.labels]  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of the share count / total."""
    if not 0 <= count <= total or total < 1:
        raise ValueError(f"count: expected 0 to total={total}, at least one example, got {count}")
    p, z2 = count / total, Z95 * Z95
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    low = 0.0 if count == 0 else centre - half  # exact at the ends, where rounding would leave 1e-19
    return low, 1.0 if count == total else centre + half


def answers(scores: Tensor, rule: str, threshold: float = 0.5) -> Tensor:
    """scores (B, K) -> bool (B, K): the best class, the best two, or all above the threshold."""
    if rule == "threshold":
        return scores > threshold
    best = scores.topk(2 if rule == "top2" else 1, dim=1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best, True)


def is_right(scores: Tensor, targets: Tensor, rule: str, threshold: float = 0.5) -> Tensor:
    """(B,) bool: whether the answer is exactly the classes in the image. targets (B,), or (B, K) multi-hot or mixed."""
    if rule == "top1":
        return scores.argmax(1) == (targets if targets.ndim == 1 else targets.argmax(1))
    return (answers(scores, rule, threshold) == (targets > 0.5)).all(1)


def score_threshold(loss: str) -> float:
    """The score above which a class is present: half the length of a capsule, or even odds of a logit."""
    return 0.0 if loss in ("bce", "cross_entropy") else 0.5


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in evaluation mode without gradients; the mode before is restored."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def forward(model: nn.Module, batch: Batch, chosen: Tensor | None = None) -> Any:
    """The model's Output for a batch of images, or of hidden states with their mask."""
    if batch.mask is not None:
        return model(batch.inputs, mask=batch.mask)
    return model(batch.inputs) if chosen is None else model(batch.inputs, chosen=chosen)


def views(images: Tensor, mirror: bool = False, nudge: int = 0) -> list[Tensor]:
    """Each image (B, C, H, W), the same moved by `nudge` pixels along each diagonal, and the mirror image of each."""
    h, w = images.shape[2:]
    wide, moves = F.pad(images, [nudge] * 4), (0, 2 * nudge)
    seen = [images, *(wide[..., y : y + h, x : x + w] for y in moves for x in moves if nudge)]
    return seen + [x.flip(-1) for x in seen if mirror]


def viewed(model: nn.Module, batch: Batch, mirror: bool = False, nudge: int = 0) -> Tensor:
    """The mean of the scores of all `views` of each image, (B, K)."""
    if batch.mask is not None:
        raise ValueError(f"train.{'mirror' if mirror else 'nudge'}: expected images, got texts; leave it out")
    seen = views(batch.inputs, mirror, nudge)
    return torch.stack([forward(model, batch._replace(inputs=x)).scores for x in seen]).mean(0)


def evaluate(
    model: nn.Module, held: Held, *, batch: int = 500, threshold: float = 0.5, mirror: bool = False, nudge: int = 0
) -> Evaluation:
    """Evaluates on all of `held`. Counts stay on the device until the end. mirror, nudge: see `views`."""
    if len(held) == 0:
        raise ValueError("held: expected at least one example to evaluate on, got none")
    k, device = held.classes, next(model.parameters()).device
    right = torch.zeros((), dtype=torch.int64, device=device)
    confusion, labels = (torch.zeros(n, k, dtype=torch.int64, device=device) for n in (k, len(Label._fields)))
    with evaluating(model):
        for b in held.batches(batch):
            scores = viewed(model, b, mirror, nudge) if mirror or nudge else forward(model, b).scores
            if scores.shape[1] != k:
                raise ValueError(f"model: expected one that tells the data's {k} classes, got {scores.shape[1]} scores")
            right += is_right(scores, b.targets, held.rule, threshold).sum()
            if held.rule == "top1":
                cell = b.targets * k + scores.argmax(1)
                confusion.view(-1).scatter_add_(0, cell, torch.ones_like(cell))
            else:
                present, given = b.targets > 0.5, answers(scores, held.rule, threshold)
                labels += torch.stack([present, given, present & given]).sum(1)
    several = held.rule != "top1"
    table = () if several else tuple(tuple(row) for row in confusion.tolist())
    counts = tuple(Label(*count) for count in labels.T.tolist()) if several else ()
    return Evaluation(len(held), len(held) - int(right), held.rule, table, counts)


def evaluate_as(recipe: Recipe, model: nn.Module, held: Held, batch: int = 500) -> Evaluation:
    """`evaluate` with the threshold of the recipe's loss and the recipe's views of each image."""
    threshold, spec = score_threshold(recipe.loss.kind), recipe.train
    return evaluate(model, held, batch=batch, threshold=threshold, mirror=spec.mirror, nudge=spec.nudge)


def confusion_text(evaluation: Evaluation, names: tuple[str, ...] = ()) -> str:
    """The confusion table, true classes down, answers across; of more than 20 classes, the ten worst confusions."""
    table = evaluation.confusion
    names = names or tuple(str(i) for i in range(len(table)))
    if len(table) > 20:
        cells = ((n, t, p) for t, row in enumerate(table) for p, n in enumerate(row) if n and t != p)
        worst = sorted(cells, reverse=True)
        return "\n".join(f"{names[t]} taken for {names[p]}: {n}" for n, t, p in worst[:10])
    width = max(6, *(len(n) + 1 for n in names)) if table else 6
    head = " " * width + "".join(f"{n:>{width}}" for n in names)
    rows = [f"{names[t]:>{width}}" + "".join(f"{n or '.':>{width}}" for n in row) for t, row in enumerate(table)]
    return "\n".join([head, *rows])


def labels_text(evaluation: Evaluation, names: tuple[str, ...] = ()) -> str:
    """A line for every label: how many images have it, precision, recall and F1."""
    names = names or tuple(str(i) for i in range(len(evaluation.labels)))
    width = max(6, *(len(n) + 1 for n in names)) if names else 6
    rows = [f"{n:>{width}}{x.present:>8,}{x.precision:>10.2f} %{x.recall:>8.2f} %{x.f1:>8.2f} %"
            for n, x in zip(names, evaluation.labels, strict=True)]  # fmt: skip
    return "\n".join([f"{'label':>{width}}{'images':>8}{'precision':>12}{'recall':>10}{'F1':>10}", *rows])


class Ensemble(nn.Module):
    """A model whose scores are the mean of its members' scores: lengths, activations or logits, as their loss takes."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Tensor, **options: Any) -> Output:
        scores = [member(inputs, **options).scores.float() for member in self.members]  # each (B, K)
        return Output(torch.stack(scores).mean(0), None)


class Member(NamedTuple):
    """A checkpoint of the ensemble. result: the content of its run's result.json, {} where there is none."""

    recipe: Recipe
    result: dict[str, Any]


def open_ensemble(
    runs: Sequence[str], *, weights: str | None = None, device: torch.device | str = "cpu"
) -> tuple[Ensemble, list[Member]]:
    """Checkpoints of one recipe with different seeds, as one model."""
    models: list[Any] = [load(run, weights=weights, device=device) for run in runs]
    members, alike = [], []
    for run, model in zip(runs, models, strict=True):
        path, recipe = Path(run) / "result.json", make_recipe(model.config["recipe"])
        members.append(Member(recipe, json.loads(path.read_text()) if path.is_file() else {}))
        alike.append(replace(recipe, train=replace(recipe.train, seed=0), overrides=(), claim=Claim(), about=""))
        if alike[-1] != alike[0]:
            raise ValueError(f"--ensemble: expected runs of one recipe that differ in their seed alone, got {runs[0]} "
                             f"({members[0].recipe.name}) and {run} ({recipe.name}) with other fields")
    if len({member.recipe.train.seed for member in members}) < len(members):
        raise ValueError("--ensemble: expected runs of different seeds, got one twice; train others with --seed")
    return Ensemble(models).eval(), members
