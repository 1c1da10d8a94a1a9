"""Callbacks are told about a run in order, may end it, and hear of a failure; recipes end runs and weigh classes."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from flashcaps.cli.train import Bar
from flashcaps.data import find_data, from_torch
from flashcaps.deploy.predict import predict_numbers
from flashcaps.training import loop as module
from flashcaps.training.autosize import own_command, own_recipe
from flashcaps.training.callbacks import Callback, Started, TensorBoard, WeightsAndBiases
from flashcaps.training.checkpoint import load
from flashcaps.training.loop import RunOptions, train

from ..fake_data import small_recipe, small_step

pytestmark = pytest.mark.usefixtures("fake_data")


class Told(Callback):
    def __init__(self, last: int = 10**6) -> None:
        self.last, self.heard = last, []

    def start(self, run: Started) -> None:
        self.heard.append(("start", run.at, run.total))

    def step(self, at: int, metrics: dict[str, float]) -> None:
        assert set(metrics) == {"epoch", "loss", "error", "lr", "images_s"}
        self.heard.append(("step", at))

    def epoch(self, at: int, metrics: dict[str, Any]) -> bool:
        self.heard.append(("epoch", at, "error" in metrics))
        return metrics["epoch"] >= self.last

    def end(self, result: dict[str, Any] | None) -> None:
        self.heard.append(("end", result and result["epochs"]))


def test_they_hear_of_start_steps_epochs_and_end_and_may_stop(tmp_path: Path) -> None:
    told = Told(last=1)
    train(small_recipe("epochs=4", "log_every=4", "evaluate_every=2"), RunOptions("cpu", str(tmp_path)), [told])
    steps = told.heard[0][2] // 4
    assert told.heard[0] == ("start", 0, 4 * steps)
    epochs = [heard[1:] for heard in told.heard if heard[0] == "epoch"]
    assert epochs == [(steps, False), (2 * steps, True)]
    assert ("step", 4) in told.heard
    assert told.heard[-1] == ("end", 2)


def test_a_failure_is_told_to_those_that_started(tmp_path: Path) -> None:
    class Fails(Told):
        def start(self, run: Started) -> None:
            raise RuntimeError("no network")

    told, fails = Told(), Fails()
    with pytest.raises(RuntimeError, match="no network"):
        train(small_recipe(), RunOptions("cpu", str(tmp_path)), [told, fails])
    assert [heard[0] for heard in told.heard] == ["start", "end"]
    assert told.heard[-1] == ("end", None)
    assert not fails.heard


def test_patience_counts_epochs_without_a_lower_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([50.0, 40.0, 45.0, 40.0, 1.0])
    evaluate_as = module.evaluate_as
    monkeypatch.setattr(module, "evaluate_as", lambda recipe, model, held, batch: SimpleNamespace(error=next(errors))
                        if len(held) == 16 else evaluate_as(recipe, model, held, batch))  # fmt: skip
    outcome = train(small_recipe("epochs=9", "patience=2", "ema=0"), RunOptions("cpu", str(tmp_path / "a")))
    assert outcome.result["epochs"] == 4


def test_numbers_go_to_tensorboard_and_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board, wandb = Mock(), Mock()
    monkeypatch.setitem(sys.modules, "tensorboard", Mock())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    train(small_recipe("epochs=1"), RunOptions("cpu", str(tmp_path / "run")), [TensorBoard(), WeightsAndBiases()])
    board.SummaryWriter.assert_called_once_with(tmp_path / "run" / "tensorboard", purge_step=0)
    assert wandb.init.call_args.kwargs["name"] == "run"
    writer, run = board.SummaryWriter.return_value, wandb.init.return_value
    written = [call.args for call in writer.add_scalar.call_args_list]
    logged = [(name, x, call.kwargs["step"]) for call in run.log.call_args_list for name, x in call.args[0].items()]
    assert written == logged
    assert {name for name, *_ in logged} >= {
        "train/loss", "train/lr", "validation/error", "validation/best", "test/test_error_percent"}  # fmt: skip
    writer.close.assert_called_once_with()
    run.finish.assert_called_once_with(exit_code=0)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"Weights & Biases needs wandb .*pip install"):
        WeightsAndBiases()


def test_classes_are_weighed_by_the_recipe_or_by_their_sizes() -> None:
    step, _ = small_step("loss.balanced=true")
    labels, classes = step.stream.labels, step.stream.classes
    assert step.class_weights[labels].sum().item() == pytest.approx(len(labels))  # the mean weight is 1
    for k in labels.unique().tolist():
        assert step.class_weights[k].item() * int((labels == k).sum()) == pytest.approx(len(labels) / classes)
    given, _ = small_step(f"loss.class_weights={[0.5] * classes}")
    plain, _ = small_step()
    batch = plain.stream.batch(*(x[0] for x in plain.stream.plan(0)))
    whole, half = (s.loss_of(plain.model, batch)[1] for s in (plain, given))
    assert half.item() < whole.item()
    with pytest.raises(ValueError, match=rf"loss\.class_weights: expected {classes} numbers, one per class, got 2"):
        small_step("loss.class_weights=[1, 2]")
    with pytest.raises(ValueError, match=r"loss\.balanced: expected no loss\.class_weights beside it"):
        small_step("loss.class_weights=[1, 2]", "loss.balanced=true")


@pytest.mark.parametrize("streaming", [False, True])
def test_any_torch_dataset_is_trained_on(tmp_path: Path, streaming: bool) -> None:
    labels = torch.arange(60) % 3
    images = torch.randn(60, 2, 14, 16) * 0.1 - 1  # floats beyond [0, 1] stay so
    for k, label in enumerate(labels.tolist()):
        images[k, :, 4 * label : 4 * label + 4] += 3
    given = {"train": TensorDataset(images, labels), "test": TensorDataset(images[:20], labels[:20])}
    recipe, options = small_recipe("epochs=12", "batch=12", "validation=0", "ema=0"), RunOptions("cpu", str(tmp_path))
    outcome = train(recipe, options, data=given | {"class_names": "abc", "streaming": streaming})
    assert outcome.test.examples == 20
    assert outcome.test.error < 20
    model: Any = load(tmp_path)
    assert (model.classes, tuple(model.image)) == (3, (2, 14, 16))
    assert model.config["class_names"] == ["a", "b", "c"]
    assert "resume=True" in (tmp_path / "resume.txt").read_text()
    with pytest.raises(FileNotFoundError, match="trained on a Dataset given in Python, which a command cannot open"):
        find_data(model.config["recipe"]["data"]["name"])


def test_items_that_cannot_be_trained_on_are_named() -> None:
    good = [(torch.zeros(1, 4, 4), 0), (torch.ones(1, 4, 4), 1)]
    several = from_torch([(x, torch.eye(2)[k]) for x, k in good], [(x, torch.ones(2)) for x, _ in good])
    assert (several.multilabel, several.classes) == (True, 2)
    draws = torch.randint(2, (99,)).tolist()

    class Random(list[Any]):  # every item is another each time, its label with it
        def __getitem__(self, k: Any) -> Any:
            label = draws.pop()
            return torch.full((1, 4, 4), float(label)), label

    split = from_torch(Random(range(20)), good).train
    assert split.images[:, 0, 0, 0].tolist() == split.labels.tolist()
    for data, match in (
        ([*good, (torch.zeros(1, 4, 5), 1)], r"train\[2\]: expected an image .* like the first"),
        ([(x, -1) for x, _ in good], "train: expected labels that are classes from 0"),
        ([(x, 0.5) for x, _ in good], "train: expected labels that are classes from 0"),
        ([(torch.zeros(1, 6, 6), 0)], "test: expected images and labels of shapes"),
    ):
        with pytest.raises(ValueError, match=match):
            from_torch(data, good)
    for data in ([], iter(good)):
        with pytest.raises(TypeError, match=r"train: expected a torch\.utils\.data\.Dataset with a length"):
            from_torch(data, good)
    with pytest.raises(ValueError, match="class_names: expected 2"):
        from_torch(good, good, class_names=["one"])


def test_a_table_of_numbers_is_trained_and_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # its own data
    table, rows = tmp_path / "flowers.csv", ["width,height,constant,label"]
    for k in range(90):
        x = torch.randn(2).double() * 20 + 100 * (k % 3) + 1e10  # as float32, all would be equal
        rows.append(f"{x[0]:.3f},{x[1]:.3f},7,{'abc'[k % 3]}")
    table.write_text("\n".join(rows))
    recipe, why = own_recipe("table", str(table), ["epochs=8"])
    assert "63 rows of 3 numbers" in why[0]
    assert own_command(recipe) == ["--table", str(table)]
    assert recipe.data.options["columns"] == ["width", "height", "constant"]
    assert recipe.data.options["std"][2] == 1  # a constant column is not divided by zero
    assert train(recipe, RunOptions("cpu", str(tmp_path / "run"))).test.error < 15
    more = tmp_path / "more.csv"
    more.write_text("constant,height,width,note\n7,1e10,1e10,x\n7,10000000200,10000000200,y\n")
    model = load(tmp_path / "run")
    assert [found.answer for found in predict_numbers(model, [str(more)])] == [("a",), ("c",)]
    more.write_text("constant,height,width\n7,much,0\n")
    with pytest.raises(ValueError, match=r"row 1: expected a number in column 'height', got 'much'"):
        predict_numbers(model, [str(more)])
    table.write_text("width,height,label\n,2,a\n1,2,b\n")
    with pytest.raises(ValueError, match=r"row 1: expected a number in column 'width', got ''"):
        own_recipe("table", str(table))
    more.write_text("constant,height\n7,1\n")
    with pytest.raises(ValueError, match="no column 'width'; expected width, height, constant"):
        predict_numbers(model, [str(more)])


def test_the_command_line_tells_of_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    bar.start(Started(small_recipe(), tmp_path, nn.Identity(), torch.device("cpu"), total=10, at=0))
    for done in (0, 2):
        bar.compiled(done, 5)
    assert bar.progress_bar.tasks[0].fields["text"] == "2 of 5 kernels compiled"
    bar.end(None)
    assert "compiling 5 kernels, once for this machine" in capsys.readouterr().out
