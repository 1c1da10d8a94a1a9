"""Callbacks of a run: curve.csv always, TensorBoard and Weights & Biases on request, and your own.

    class Print(Callback):
        def epoch(self, at, metrics):
            print(at, metrics)

    train(recipe, callbacks=[Print(), TensorBoard()])
"""

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..routing.checks import import_extra
from .checkpoint import write_atomic
from .recipe import Recipe
from .run_folder import read_metrics

COLUMNS = ("kind", "step", "epoch", "seconds", "loss", "error", "lr", "images_s", "split")


@dataclass(frozen=True)
class Started:
    """A run that starts, or resumes after `at` of its `total` steps."""

    recipe: Recipe
    folder: Path
    model: nn.Module
    device: torch.device
    total: int
    at: int


class Callback:
    """Methods that the first process of a run calls. `at` counts the steps that are done.

    No step waits for them: numbers come every train.log_every steps, when the loop waits for the device anyway.
    """

    def start(self, run: Started) -> None:
        """Before the first step."""

    def compiled(self, kernels: int, total: int) -> None:
        """On a GPU, after `start`: how many of the kernels that were missing in its cache are compiled."""

    def step(self, at: int, metrics: dict[str, float]) -> None:
        """metrics: epoch, loss, error in percent, lr, images_s; means since the last call."""

    def epoch(self, at: int, metrics: dict[str, Any]) -> bool | None:
        """metrics: epoch; where held-out data were evaluated also split, error, best. Returns True to end the run."""

    def end(self, result: dict[str, Any] | None) -> None:
        """result: what result.json says; None where the run was stopped or failed."""


class CSV(Callback):
    """curve.csv: a line for every point of training, evaluation and test."""

    def start(self, run: Started) -> None:
        self.folder = run.folder

    def epoch(self, at: int, metrics: dict[str, Any]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(m for m in read_metrics(self.folder) if m["kind"] in ("train", "evaluation", "test"))
        write_atomic(self.folder / "curve.csv", text.getvalue())

    def end(self, result: dict[str, Any] | None) -> None:
        if result is not None:
            self.epoch(0, {})


class Scalars(Callback):
    """Writes every number under a name: train/loss, validation/error, test/test_error_percent."""

    at = 0

    def write(self, at: int, values: dict[str, float]) -> None:
        raise NotImplementedError

    def step(self, at: int, metrics: dict[str, float]) -> None:
        self.at = at
        self.write(at, {f"train/{name}": value for name, value in metrics.items()})

    def epoch(self, at: int, metrics: dict[str, Any]) -> None:
        if "split" in metrics:
            self.write(at, {f"{metrics['split']}/{name}": metrics[name] for name in ("error", "best")})

    def end(self, result: dict[str, Any] | None) -> None:
        if result is not None:
            self.write(self.at, {f"test/{result['metric']}": result["value"]})


class TensorBoard(Scalars):
    """Writes RUN/tensorboard."""

    def __init__(self) -> None:
        import_extra("tensorboard", "tensorboard", "TensorBoard")

    def start(self, run: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(run.folder / "tensorboard", purge_step=run.at)

    def write(self, at: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, at)

    def end(self, result: dict[str, Any] | None) -> None:
        super().end(result)
        self.writer.close()


class WeightsAndBiases(Scalars):
    """Logs to the project flashcaps, or the one $WANDB_PROJECT names, under the name of the run's folder."""

    def __init__(self) -> None:
        self.wandb = import_extra("wandb", "wandb", "Weights & Biases")

    def start(self, run: Started) -> None:
        project = None if "WANDB_PROJECT" in os.environ else "flashcaps"
        self.run = self.wandb.init(project=project, name=run.folder.name, dir=run.folder, config=run.recipe.to_dict())

    def write(self, at: int, values: dict[str, float]) -> None:
        self.run.log(values, step=at)

    def end(self, result: dict[str, Any] | None) -> None:
        super().end(result)
        self.run.finish(exit_code=int(result is None))


CALLBACKS: dict[str, type[Callback]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
