"""The loop: it learns, stops and goes on bit for bit, and shares its work among processes."""

import csv
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import TensorDataset

from flashcaps.models import create_model
from flashcaps.training import loader as sources
from flashcaps.training import loop as module
from flashcaps.training.batches import Share
from flashcaps.training.callbacks import COLUMNS, Callback
from flashcaps.training.checkpoint import load
from flashcaps.training.distributed import Stopped, Workers, find_device, was_restarted
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.memory import OutOfMemory
from flashcaps.training.recipe import read_recipe
from flashcaps.training.run_folder import RunFolder, read_metrics
from flashcaps.training.step import TrainStep

from ..fake_data import CPU, fake_load_data, small_recipe, small_step

# everything that could be forgotten on the way: averaging, accumulation, clipping, mixup, random contrast, momentum
MIXED = ("accumulate=2", "clip=1", "mixup=0.2", "contrast=[0.5, 1.5]", "loss.kind=cross_entropy", "evaluate_every=2",
         "optimiser.kind=radam", "schedule.kind=one_cycle", "schedule.momentum=[0.999, 0.8991]")  # fmt: skip


pytestmark = pytest.mark.usefixtures("fake_data")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small recipe that nothing stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "load_data", fake_load_data)
        train(small_recipe(), options(folder))
    return folder


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of the small recipe that was stopped after eleven steps."""
    with pytest.raises(Stopped):
        train(small_recipe(), options(tmp_path / "stopped"), [StopAt(11, signal.SIGTERM)])
    return tmp_path / "stopped"


def options(path: Path, **more: Any) -> RunOptions:
    return RunOptions("cpu", str(path), **more)


def metrics(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    return [m for m in read_metrics(folder) if m["kind"] == kind]


def assert_same_weights(a: Path, b: Path, names: tuple[str, ...] = ("last", "ema")) -> None:
    for name in names:
        first, second = (load_file(p / f"{name}.safetensors") for p in (a, b))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[k], second[k]) for k in first), name


def test_a_run_learns_and_leaves_everything(tmp_path: Path, pictures: None) -> None:
    outcome = train(small_recipe("epochs=12"), options(tmp_path / "run"))
    assert outcome.test.error < 50  # chance is 90
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {"config.json", "metrics.jsonl", "last.safetensors", "ema.safetensors", "best.safetensors",
                     "result.json", "curve.png", "curve.csv", "resume.txt", "reconstructions.png"}  # fmt: skip
    lines = metrics(tmp_path / "run")
    assert [m["step"] for m in lines] == list(range(1, 97))
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert [m["step"] for m in metrics(tmp_path / "run", "evaluation")] == list(range(8, 97, 8))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result == outcome.result
    assert (result["images"], result["epochs"], result["weights"]) == (768, 12, "ema")
    assert result["variant"] == "epochs=12"
    assert load(tmp_path / "run").name == "capsnet_tiny"
    with (tmp_path / "run" / "curve.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    told = [m for m in read_metrics(tmp_path / "run") if m["kind"] != "routing"]
    for row, m in zip(rows, told, strict=True):
        assert row == {name: str(m.get(name, "")) for name in COLUMNS}
    assert min(Image.open(tmp_path / "run" / "curve.png").size) > 100


class StopAt(Callback):
    def __init__(self, step: int, number: int) -> None:
        self.last, self.number = step, number

    def step(self, at: int, metrics: dict[str, float]) -> None:
        if at == self.last:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("step", "number", "overrides"),
    [(1, signal.SIGINT, ()), (11, signal.SIGTERM, MIXED),
     (8, signal.SIGTERM, ("optimiser.kind=muon", "optimiser.momentum=0.9", "flip=true", "alternate=true"))],
)
def test_stopped_and_resumed_is_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, number: int, overrides: tuple[str, ...]
) -> None:
    def with_dropout(name: str, **overrides: Any) -> Any:
        model = create_model(name, **overrides)
        model.backbone.append(torch.nn.Dropout(0.5))
        return model

    monkeypatch.setattr(module, "create_model", with_dropout)
    recipe = small_recipe(*overrides)
    train(recipe, options(tmp_path / "whole"))
    with pytest.raises(Stopped, match=r"continue with: flashcaps train small .*--resume") as stopped:
        train(recipe, options(tmp_path / "parts"), [StopAt(step, number)])
    assert stopped.value.code == 128 + number
    for dev in (False, True):
        with pytest.raises(FileExistsError, match=r"unfinished run.*--resume"):
            train(recipe, options(tmp_path / "parts", dev=dev))
    torch.manual_seed(99)  # whatever the process was doing before
    train(recipe, options(tmp_path / "parts", resume=True))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", ("last", "ema", "best"))
    curves = [[(m["step"], m["loss"], m["error"]) for m in metrics(tmp_path / n)] for n in ("whole", "parts")]
    assert curves[0] == curves[1]


def test_another_recipe_is_not_resumed_but_one_older_than_a_field(stopped: Path) -> None:
    """Which is resumed with the default of the field."""
    with pytest.raises(ValueError, match=r"other values of model\.iterations, optimiser\.lr;"):
        train(small_recipe("lr=0.1", "model.iterations=2"), options(stopped, resume=True))
    before = json.loads((stopped / "config.json").read_text())
    changed = before | {"data": before["data"] | {"options": {"examples": "0f"}}}
    (stopped / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"other values of data\.examples \(a checksum: files or rows were added"):
        train(small_recipe(), options(stopped, resume=True))
    del before["train"]["patience"], before["loss"]["class_weights"], before["data"]["held"]
    (stopped / "config.json").write_text(json.dumps(before))
    with pytest.raises(ValueError, match=r"other values of train\.patience;"):
        train(small_recipe("patience=3"), options(stopped, resume=True))
    train(small_recipe(), options(stopped, resume=True))
    assert (stopped / "result.json").is_file()
    given = TensorDataset(torch.rand(50, 1, 28, 28), torch.arange(50) % 10)
    with pytest.raises(Stopped):
        train(small_recipe(), options(stopped.with_name("given")), [StopAt(3, signal.SIGTERM)],
              data={"train": given, "test": given})  # fmt: skip
    with pytest.raises(ValueError, match=r"--resume: expected the 34 training examples .* started with, got 64;"):
        train(small_recipe(), options(stopped.with_name("given"), resume=True),
              data={"train": TensorDataset(torch.rand(80, 1, 28, 28), torch.arange(80) % 10), "test": given})
    with pytest.raises(FileNotFoundError, match="no whole state"):
        train(small_recipe(), options(stopped / "nothing", resume=True))


def test_a_run_writes_over_what_runs_wrote_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of somebody's work, twice; and beside another program's config.json not even once."""
    (tmp_path / "src").mkdir()
    others = [tmp_path / "thesis.tex", tmp_path / "src" / "code.py", tmp_path / "best.pt"]
    for file in others:
        file.write_text("years of work")
    first = small_recipe("epochs=1", "ema=0.5")
    train(first, options(tmp_path))
    assert (tmp_path / "ema.safetensors").is_file()
    train(small_recipe("epochs=1", "ema=0"), options(tmp_path))
    assert not (tmp_path / "ema.safetensors").is_file()
    monkeypatch.chdir(tmp_path)
    train(first, RunOptions("cpu"))
    other = replace(first, loss=replace(first.loss, kind="spread"))  # as by --routing em, which is not in the name
    with pytest.raises(FileExistsError, match=r"with other values of loss\.kind; choose .* --out, or .* with --fresh"):
        train(other, RunOptions("cpu"))
    for fresh in (True, False):  # then it is the same
        train(other, RunOptions("cpu", fresh=fresh))
    assert all(file.read_text() == "years of work" for file in others)
    for config in ('{"architectures": ["GPT2"]}', "[1]", "not JSON"):
        (tmp_path / "config.json").write_text(config)
        for more in ({}, {"fresh": True}, {"resume": True}):
            with pytest.raises(FileExistsError, match=r"holds a config\.json that is no run's; choose another .*--out"):
                train(first, options(tmp_path, **more))
        assert (tmp_path / "config.json").read_text() == config
        assert (tmp_path / "result.json").is_file()


@pytest.mark.parametrize(("named", "seed", "words"), [
    ("tiny", 0, "tiny --device cpu"), ("tiny", 3, "tiny --seed 3 --device cpu"),
    ("mine.toml", 0, "mine.toml --seed 0 --device cpu"), ("mine.toml", 3, "mine.toml --seed 3 --device cpu"),
])  # fmt: skip
def test_a_run_is_resumed_with_its_seed(named: str, seed: int, words: str) -> None:
    """A recipe of one's own may have another than 0."""
    recipe = read_recipe("tiny")
    recipe = replace(recipe, train=replace(recipe.train, seed=seed))
    run = module.make_run(recipe, RunOptions("cpu", recipe_name=named))
    assert run.resume_command == f"flashcaps train {words} --resume"


def test_a_run_killed_before_its_first_state_starts_over(tmp_path: Path, whole: Path) -> None:
    """And ends the same, unlike a run of another seed."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "config.json").write_text(small_recipe().to_json())
    (tmp_path / "parts" / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 9}\n{"kind": "tr')
    train(small_recipe(), options(tmp_path / "parts", resume=True))
    assert_same_weights(whole, tmp_path / "parts", ("last", "ema", "best"))
    assert metrics(tmp_path / "parts")[0]["loss"] == metrics(whole)[0]["loss"]
    train(small_recipe("seed=1"), options(tmp_path / "other"))
    a, b = (load_file(folder / "last.safetensors") for folder in (whole, tmp_path / "other"))
    assert not torch.equal(a["capsules.layers.0.weight"], b["capsules.layers.0.weight"])


def test_a_command_that_is_started_again_resumes_by_itself(
    tmp_path: Path, stopped: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what no number depends on may change on resuming; fresh, it starts over."""
    for name in ("other", "anew"):
        shutil.copytree(stopped, tmp_path / name)
    train(small_recipe("save_seconds=0", "log_every=3"), options(tmp_path / "other", resume=True))
    assert_same_weights(whole, tmp_path / "other")
    assert train(small_recipe("epochs=1"), options(tmp_path / "anew", fresh=True)).result["epochs"] == 1
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        for count in ("0", "2"):
            monkeypatch.setenv(name, count)
            assert was_restarted() == (count == "2")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    train(small_recipe(), options(stopped))
    assert_same_weights(whole, stopped, ("last", "ema", "best"))


def test_a_step_keeps_its_images_whoever_shares_them() -> None:
    recipe = small_recipe("batch=8", "accumulate=2")
    assert module.make_share(recipe, None, Workers(CPU, 1, 2)) == Share(8, 1, 2)
    assert module.make_share(recipe, {"images": 16}, Workers(CPU)) == Share(16)
    assert module.make_share(recipe, {"images": 16}, Workers(CPU, 3, 4)) == Share(4, 3, 4)
    with pytest.raises(ValueError, match="share a step of 16 images in 2 parts, got 3"):
        module.make_share(recipe, {"images": 16}, Workers(CPU, 0, 3))


def test_validation_is_held_out_of_training_and_test_is_touched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    evaluate_as = module.evaluate_as

    def spy(recipe: Any, model: Any, held: Any, batch: int) -> Any:
        seen.append(len(held))
        return evaluate_as(recipe, model, held, batch)

    monkeypatch.setattr(module, "evaluate_as", spy)
    train(small_recipe("ema=0"), options(tmp_path / "a"))
    assert seen == [16, 16, 16, 40]
    seen.clear()
    train(small_recipe("ema=0", "validation=0"), options(tmp_path / "b"))
    assert seen == [40]
    assert metrics(tmp_path / "b")[-1]["step"] == 30  # all 80 examples
    seen.clear()
    outcome = train(small_recipe("ema=0", "select=test"), options(tmp_path / "c"))
    assert seen == [40, 40, 40, 40]
    assert outcome.result["split"] == "test, best epoch chosen on it"
    errors = [m["error"] for m in metrics(tmp_path / "c", "evaluation")]
    assert outcome.test.error == min(errors)


def test_the_test_curve_is_scored_at_every_evaluation_and_changes_nothing(tmp_path: Path) -> None:
    plain, followed = (train(small_recipe("select=validation", *more), options(tmp_path / str(len(more))))
                       for more in ((), ("test_curve=true",)))  # fmt: skip
    curve = followed.result["curve"]
    assert [{k: v for k, v in point.items() if k != "test_error"} for point in curve] == plain.result["curve"]
    assert followed.test.error == plain.test.error
    best = min(curve, key=lambda point: point["error"])
    assert best["test_error"] == followed.test.error


def test_stop_error_ends_a_run_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is killed while it is tested, after it saved a state at every step."""
    recipe = small_recipe("epochs=50", "stop_error=60", "save_seconds=0")
    with monkeypatch.context() as patch:
        patch.setattr(module, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe, options(tmp_path))
    outcome = train(recipe, options(tmp_path, resume=True))
    errors = [m["error"] for m in metrics(tmp_path, "evaluation")]
    assert errors[-1] <= 60 < min(errors[:-1])
    assert outcome.result["epochs"] == len(errors) < 50


def test_all_processes_stop_where_the_first_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics differ from process to process, and so may errors: each for itself, one would wait for the other."""
    averaged: list[str] = []
    workers = SimpleNamespace(rank=1, average_statistics=averaged.append, shared=lambda mine: True)
    step = SimpleNamespace(recipe=small_recipe("stop_error=10"), model="model", tested="average", workers=workers,
                           average=SimpleNamespace(model="average"), stream=SimpleNamespace(steps=4))
    monkeypatch.setattr(module, "evaluate_as", lambda *_: SimpleNamespace(error=11.0))
    held = module.validate(step, SimpleNamespace(validation=[1], test=[1]), SimpleNamespace(best={}), 4)
    assert held == {"split": "validation", "error": 11.0, "best": None}
    assert module.is_done(step, SimpleNamespace(best={}), 4, {"epoch": 0, **held}, []) is True
    assert averaged == ["model", "average"]  # the statistics of both, in the same order everywhere


def test_a_resumed_run_tells_its_own_speed_and_counts_images_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after nine steps of ten that one line of the log tells of, of which the first process did its part."""
    recipe, advance = small_recipe("log_every=10", "train.steps=10", "batch=4"), TrainStep.advance

    def stop_at_nine(self: TrainStep, index: Tensor, noise: Tensor) -> None:
        advance(self, index, noise)
        if self.totals[2] == 9 * 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainStep, "advance", stop_at_nine)
    with pytest.raises(Stopped):
        train(recipe, options(tmp_path))
    clock = iter(range(10**6))
    monkeypatch.setattr(RunFolder, "wall_s", property(lambda self: float(next(clock))))
    train(recipe, options(tmp_path, resume=True))
    (line,) = metrics(tmp_path)
    assert line["images_s"] <= 4  # one step of four images, which took a second or more

    for rank, images in ((0, 8), (1, 0)):
        step, _ = small_step()
        step.workers = Workers(CPU, rank)
        step.load_state_dict(step.state_dict() | {"totals": torch.full((3,), 8.0, dtype=torch.float64)})
        assert step.totals[2].item() == images


def test_wrong_settings_say_what_to_do_and_leave_nothing(tmp_path: Path) -> None:
    images = TensorDataset(torch.rand(24, 1, 20, 20), torch.eye(3)[torch.arange(24) % 3])
    several = {"train": images, "test": images}
    for overrides, data, message in (
        (("batch=65",), None, r"train\.batch: expected at most 64"),
        (("model.decoder=false",), None, r"loss\.reconstruction: capsnet_tiny has no decoder"),
        *(((asks, "validation=0"), None, rf"train\.{asks.split('=')[0]}: expected validation data .*validation=N")
          for asks in ("select=validation", "stop_error=5", "patience=2")),
        (("data.name=multimnist", "model.image=[1, 36, 36]"), None, "augment: expected none for composed images"),
        (("validation=8",), several, r"loss\.reconstruction: expected 0 for images of several labels"),
        (("reconstruction=0", "loss.kind=spread"), several,
         r"loss\.kind: expected margin or bce for .* several classes, got spread"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            train(small_recipe(*overrides), options(tmp_path / "run"), data=data)
    with pytest.raises(ValueError, match="device: expected auto, cpu"):
        find_device("gpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.parametrize(
    "overrides",
    [(), MIXED, ("precision=bf16",), ("optimiser.kind=sgd", "optimiser.momentum=0.9"),
     ("optimiser.kind=muon", "optimiser.momentum=0.95", "optimiser.weight_decay=0.1")],
)  # fmt: skip
def test_a_captured_run_is_the_eager_one_and_resumes(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Convolutions add up in an order of their own on a GPU, so not bit for bit."""
    for name in ("true", "false"):
        train(small_recipe(*overrides, f"capture={name}"), RunOptions("cuda", str(tmp_path / name)))
    with pytest.raises(Stopped):
        train(small_recipe(*overrides), RunOptions("cuda", str(tmp_path / "parts")), [StopAt(13, signal.SIGTERM)])
    train(small_recipe(*overrides), RunOptions("cuda", str(tmp_path / "parts"), resume=True))
    captured, eager, parts = ([m["loss"] for m in metrics(tmp_path / n)] for n in ("true", "false", "parts"))
    near = 2e-2 if "precision=bf16" in overrides else 1e-3
    assert captured == pytest.approx(eager, rel=near)
    assert parts == pytest.approx(captured, rel=near)


def test_a_run_leaves_the_command_that_resumes_it_and_points_of_its_routing(tmp_path: Path) -> None:
    outcome = train(small_recipe("epochs=100"), options(tmp_path / "run", recipe_name="mine.toml", dev=True))
    assert outcome.result["images"] == 20 * 8  # a trial of a few steps
    command = (tmp_path / "run" / "resume.txt").read_text().replace(str(tmp_path), "")
    assert command == "flashcaps train mine.toml epochs=100 --seed 0 --device cpu --out /run --dev --resume\n"
    routing = metrics(tmp_path / "run", "routing")
    assert [line["step"] for line in routing] == [1, 2, 5, 10, 20]
    assert all(len(line["change"]) == 6 and min(line["change"]) > 0 for line in routing)


def test_out_of_memory_names_a_batch_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TrainStep.advance

    def full(step: TrainStep, index: torch.Tensor, noise: torch.Tensor, *rest: Any) -> None:
        if len(index) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        whole(step, index, noise, *rest)

    monkeypatch.setattr(TrainStep, "advance", full)
    with pytest.raises(OutOfMemory, match=r"train.batch: 8 does not fit .*batch=4 fits, or accumulate=2"):
        train(small_recipe("epochs=1"), RunOptions("cpu", str(tmp_path / "run")))
