"""The loop: it learns, stops and goes on bit for bit, and shares its work among processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flashcaps import sources
from flashcaps import train as module
from flashcaps.batches import Augmentation, HeldImages, ImageStream, PairStream, Share
from flashcaps.checkpoint import load
from flashcaps.data import MultiMNIST
from flashcaps.models import create_model
from flashcaps.recipe import Augment, read_recipe
from flashcaps.run_folder import RunFolder
from flashcaps.step import WARM_UP, Average, CapturedStep, Step
from flashcaps.train import Place, Watch, train
from flashcaps.workers import Stopped, Workers, find_device

from .fake_data import SMALL_TOML, fake_load_data, fake_split, small_recipe, write_idx

CPU = torch.device("cpu")
# everything that could be forgotten on the way: averaging, accumulation, clipping, mixup, random contrast, momentum
MIXED = ("accumulate=2", "clip=1", "mixup=0.2", "contrast=[0.5, 1.5]", "loss.kind=cross_entropy", "evaluate_every=2",
         "optimiser.kind=radam", "schedule.kind=one_cycle", "schedule.momentum=[0.999, 0.8991]")  # fmt: skip


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "load_data", fake_load_data)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures."""
    monkeypatch.setattr(module, "draw_curve", lambda *_: "")
    monkeypatch.setattr(module, "draw_reconstructions", lambda *_: "")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many as the processes that tests start have: sums over threads depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def place(path: Path, **more: Any) -> Place:
    return Place("cpu", str(path), **more)


def metrics(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [m for m in map(json.loads, lines) if m["kind"] == kind]


def assert_same_weights(a: Path, b: Path, names: tuple[str, ...] = ("last", "ema")) -> None:
    for name in names:
        first, second = (load_file(p / f"{name}.safetensors") for p in (a, b))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[k], second[k]) for k in first), name


def test_a_run_learns_and_leaves_everything(tmp_path: Path) -> None:
    outcome = train(small_recipe("epochs=12"), place(tmp_path / "run"))
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


def test_twice_the_same_seed_gives_the_same_and_another_another(tmp_path: Path, quick: None) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(small_recipe(f"seed={seed}"), place(tmp_path / name))
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    a, c = (load_file(tmp_path / n / "last.safetensors") for n in "ac")
    assert not torch.equal(a["capsules.layers.0.weight"], c["capsules.layers.0.weight"])


class StopAt(Watch):
    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def progress(self, at: int, loss: float, error: float, images_s: float) -> None:
        if at == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("step", "number", "overrides"),
    [(1, signal.SIGINT, ()), (8, signal.SIGTERM, ()), (11, signal.SIGTERM, MIXED), (23, signal.SIGINT, MIXED),
     (9, signal.SIGTERM, ("optimiser.kind=muon", "optimiser.momentum=0.9", "flip=true", "alternate=true"))],
)
def test_stopped_and_resumed_is_bit_for_bit(
    tmp_path: Path, quick: None, step: int, number: int, overrides: tuple[str, ...]
) -> None:
    recipe = small_recipe(*overrides)
    train(recipe, place(tmp_path / "whole"))
    with pytest.raises(Stopped, match=r"go on with: flashcaps train small .*--resume") as stopped:
        train(recipe, place(tmp_path / "parts"), StopAt(step, number))
    assert stopped.value.code == 128 + number
    with pytest.raises(FileExistsError, match=r"unfinished run.*--resume"):
        train(recipe, place(tmp_path / "parts"))
    torch.manual_seed(99)  # whatever the process was doing before
    train(recipe, place(tmp_path / "parts", resume=True))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", ("last", "ema", "best"))
    curves = [[(m["step"], m["loss"], m["error"]) for m in metrics(tmp_path / n)] for n in ("whole", "parts")]
    assert curves[0] == curves[1]


def test_resumed_with_dropout_is_bit_for_bit(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_dropout(name: str, **overrides: Any) -> Any:
        model = create_model(name, **overrides)
        model.backbone.append(torch.nn.Dropout(0.5))
        return model

    monkeypatch.setattr(module, "create_model", with_dropout)
    train(small_recipe(), place(tmp_path / "whole"))
    with pytest.raises(Stopped):
        train(small_recipe(), place(tmp_path / "parts"), StopAt(13, signal.SIGTERM))
    torch.manual_seed(99)
    train(small_recipe(), place(tmp_path / "parts", resume=True))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_is_replaced_and_another_recipe_is_not_resumed(tmp_path: Path, quick: None) -> None:
    train(small_recipe("epochs=1"), place(tmp_path))
    train(small_recipe("epochs=1"), place(tmp_path))
    with pytest.raises(Stopped):
        train(small_recipe(), place(tmp_path), StopAt(2, signal.SIGTERM))
    with pytest.raises(ValueError, match=r"other values of optimiser\.lr"):
        train(small_recipe("lr=0.1"), place(tmp_path, resume=True))
    train(small_recipe("epochs=1"), place(tmp_path, fresh=True))
    with pytest.raises(FileNotFoundError, match="no whole state"):
        train(small_recipe(), place(tmp_path / "nothing", resume=True))


def test_a_run_writes_over_what_runs_wrote_and_nothing_else(tmp_path: Path, quick: None) -> None:
    """In a folder of somebody's work, twice; and beside another program's config.json not even once."""
    (tmp_path / "src").mkdir()
    others = [tmp_path / "thesis.tex", tmp_path / "src" / "code.py", tmp_path / "best.pt"]
    for file in others:
        file.write_text("years of work")
    first = small_recipe("epochs=1", "ema=0.5")
    train(first, place(tmp_path))
    assert (tmp_path / "ema.safetensors").is_file()
    train(small_recipe("epochs=1", "ema=0"), place(tmp_path))
    assert not (tmp_path / "ema.safetensors").is_file()
    assert all(file.read_text() == "years of work" for file in others)
    for config in ('{"architectures": ["GPT2"]}', "[1]", "not JSON"):
        (tmp_path / "config.json").write_text(config)
        for more in ({}, {"fresh": True}, {"resume": True}):
            with pytest.raises(FileExistsError, match=r"holds a config\.json that is no run's; choose another .*--out"):
                train(first, place(tmp_path, **more))
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
    run = module.make_run(recipe, Place("cpu", named=named), Workers(CPU))
    assert run.resume_command == f"flashcaps train {words} --resume"


def test_a_run_killed_before_its_first_state_begins_again(tmp_path: Path, quick: None) -> None:
    train(small_recipe(), place(tmp_path / "whole"))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "config.json").write_text(small_recipe().to_json())
    (tmp_path / "parts" / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 9}\n{"kind": "tr')
    train(small_recipe(), place(tmp_path / "parts", resume=True))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", ("last", "ema", "best"))
    assert metrics(tmp_path / "parts")[0]["loss"] == metrics(tmp_path / "whole")[0]["loss"]


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_command_that_is_started_again_goes_on_by_itself(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    train(small_recipe(), place(tmp_path / "whole"))
    with pytest.raises(Stopped):
        train(small_recipe(), place(tmp_path / "parts"), StopAt(11, signal.SIGTERM))
    monkeypatch.setenv(name, "0")
    with pytest.raises(FileExistsError, match="unfinished run"):
        train(small_recipe(), place(tmp_path / "parts"))
    monkeypatch.setenv(name, "2")
    train(small_recipe(), place(tmp_path / "parts"))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", ("last", "ema", "best"))


def test_what_no_number_depends_on_may_change_on_resuming(tmp_path: Path, quick: None) -> None:
    train(small_recipe(), place(tmp_path / "whole"))
    with pytest.raises(Stopped):
        train(small_recipe(), place(tmp_path / "parts"), StopAt(11, signal.SIGTERM))
    train(small_recipe("save_seconds=0", "log_every=3", "rollback=1"), place(tmp_path / "parts", resume=True))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_step_keeps_its_images_whoever_shares_them() -> None:
    recipe = small_recipe("batch=8", "accumulate=2")
    assert module.make_share(recipe, None, Workers(CPU, 1, 2)) == Share(8, 1, 2)
    assert module.make_share(recipe, {"images": 16}, Workers(CPU)) == Share(16)
    assert module.make_share(recipe, {"images": 16}, Workers(CPU, 3, 4)) == Share(4, 3, 4)
    with pytest.raises(ValueError, match="share a step of 16 images in 2 parts, got 3"):
        module.make_share(recipe, {"images": 16}, Workers(CPU, 0, 3))


def test_a_folder_in_use_is_refused_and_free_afterwards(tmp_path: Path, quick: None) -> None:
    class Second(Watch):
        def progress(self, at: int, loss: float, error: float, images_s: float) -> None:
            for more in ({}, {"fresh": True}, {"resume": True}):
                with pytest.raises(FileExistsError, match=rf"is in use by process {os.getpid()} on .*--out"):
                    train(small_recipe(), place(tmp_path / "run", **more))

    train(small_recipe("epochs=1"), place(tmp_path / "run"), Second())
    train(small_recipe("epochs=1"), place(tmp_path / "run"))
    assert not (tmp_path / "run" / "run.lock").exists()


def test_nothing_is_left_of_a_run_that_could_not_begin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.batch"):
        train(small_recipe("batch=65"), place(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def command(tmp_path: Path, out: str, *more: str) -> list[str]:
    (tmp_path / "small.toml").write_text(SMALL_TOML)
    write_idx(tmp_path / "data")
    return ["train", str(tmp_path / "small.toml"), "--device", "cpu", "--data", str(tmp_path / "data"),
            "--out", str(tmp_path / out), *more]  # fmt: skip


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def lines_of(path: Path) -> int:
    return path.read_text().count("\n") if path.is_file() else 0


def test_killed_and_resumed_is_bit_for_bit(tmp_path: Path, quick: None, one_thread: None) -> None:
    train(small_recipe("epochs=6", "save_seconds=0"), place(tmp_path / "whole"))
    start = [sys.executable, "-m", "flashcaps", *command(tmp_path, "parts", "epochs=6", "save_seconds=0")]
    with subprocess.Popen(start, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as run:  # tests/faults has many more
        while run.poll() is None and lines_of(tmp_path / "parts" / "metrics.jsonl") < 17:
            time.sleep(0.002)
        run.kill()
    assert run.returncode == -signal.SIGKILL
    train(small_recipe("epochs=6", "save_seconds=0"), place(tmp_path / "parts", resume=True))
    assert_same_weights(tmp_path / "whole", tmp_path / "parts", ("last", "ema", "best"))


def test_two_processes_follow_one_with_the_doubled_batch(tmp_path: Path, quick: None) -> None:
    train(small_recipe("batch=16"), place(tmp_path / "one"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "flashcaps"]
    start = [*launch, *command(tmp_path, "two", "batch=8")]
    done = subprocess.run(start, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    one, two = ([m["loss"] for m in metrics(tmp_path / name)] for name in ("one", "two"))
    assert len(one) == len(two) == 12
    # sums are taken in another order, and Adam divides by small numbers: 0.1 % after twelve steps
    assert two == pytest.approx(one, rel=1e-3)
    assert two[0] == pytest.approx(one[0], rel=1e-6)
    a, b = (load_file(tmp_path / n / "last.safetensors") for n in ("one", "two"))
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=0.02, atol=2e-3)


def test_validation_is_held_out_of_training_and_test_is_touched_once(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    measure = module.measure

    def spy(step: Any, model: Any, held: Any) -> Any:
        seen.append(len(held))
        return measure(step, model, held)

    monkeypatch.setattr(module, "measure", spy)
    train(small_recipe("ema=0"), place(tmp_path / "a"))
    assert seen == [16, 16, 16, 40]
    seen.clear()
    train(small_recipe("ema=0", "validation=0"), place(tmp_path / "b"))
    assert seen == [40]
    assert metrics(tmp_path / "b")[-1]["step"] == 30  # all 80 examples
    seen.clear()
    outcome = train(small_recipe("ema=0", "select=test"), place(tmp_path / "c"))
    assert seen == [40, 40, 40, 40]
    assert outcome.result["split"] == "test, best epoch chosen on it"
    errors = [m["error"] for m in metrics(tmp_path / "c", "evaluation")]
    assert outcome.test.error == min(errors)


def test_stop_error_ends_a_run_early(tmp_path: Path, quick: None) -> None:
    outcome = train(small_recipe("epochs=50", "stop_error=60"), place(tmp_path))
    errors = [m["error"] for m in metrics(tmp_path, "evaluation")]
    assert errors[-1] <= 60 < min(errors[:-1])
    assert outcome.result["epochs"] == len(errors) < 50


def test_all_processes_stop_where_the_first_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics differ from process to process, and so may errors: each for itself, one would wait for the other."""
    averaged: list[str] = []
    workers = SimpleNamespace(rank=1, average_statistics=averaged.append, shared=lambda mine: True)
    step = SimpleNamespace(recipe=small_recipe("stop_error=10"), model="model", tested="average", workers=workers,
                           average=SimpleNamespace(model="average"), stream=SimpleNamespace(steps=4))
    monkeypatch.setattr(module, "measure", lambda *_: SimpleNamespace(error=11.0))
    assert module.look(step, SimpleNamespace(validation=[1], test=[1]), None, 4, Watch()) is True
    assert averaged == ["model", "average"]  # the statistics of both, in the same order everywhere


def test_a_resumed_run_tells_its_own_speed_and_counts_images_once(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after nine steps of ten that one line of the log tells of, of which the first process did its part."""
    recipe, advance = small_recipe("log_every=10", "train.steps=10", "batch=4"), Step.advance

    def stop_at_nine(self: Step, index: Tensor, noise: Tensor) -> None:
        advance(self, index, noise)
        if self.totals[2] == 9 * 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Step, "advance", stop_at_nine)
    with pytest.raises(Stopped):
        train(recipe, place(tmp_path))
    clock = iter(range(10**6))
    monkeypatch.setattr(RunFolder, "wall_s", property(lambda self: float(next(clock))))
    train(recipe, place(tmp_path, resume=True))
    (line,) = metrics(tmp_path)
    assert line["images_s"] <= 4  # one step of four images, which took a second or more

    stream = ImageStream(fake_split(16, 10, (1, 28, 28)), recipe.augment, Share(8), 10, 0)
    steps = [Step(create_model(recipe.model.name, **recipe.model.overrides), stream, recipe, "top1", Workers(CPU, rank))
             for rank in (0, 1)]
    state = steps[0].state_dict() | {"totals": torch.full((3,), 8.0, dtype=torch.float64)}
    for step in steps:
        step.load_state_dict(state)
    assert [step.totals[2].item() for step in steps] == [8, 0]


def test_dev_runs_a_few_steps(tmp_path: Path, quick: None) -> None:
    outcome = train(small_recipe("epochs=100"), place(tmp_path, dev=True))
    assert outcome.result["images"] == 20 * 8


def test_accumulated_parts_make_the_same_step() -> None:
    split = fake_split(16, 10, (1, 28, 28))
    losses, grads = [], []
    for accumulate in (1, 4):
        recipe = small_recipe("batch=16", f"accumulate={accumulate}")
        stream = ImageStream(split, recipe.augment, Share(16), 10, 0)
        torch.manual_seed(0)
        model = create_model(recipe.model.name, **recipe.model.overrides)
        step = Step(model, stream, recipe, "top1", Workers(CPU))
        plan = stream.plan(0)
        step(plan.index[0], plan.noise[0], 0)
        losses.append(step.read()[0])
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert (grads[0] - grads[1]).norm() < 1e-5 * grads[0].norm()


@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_coefficients_take_one_step_however_many_parts_a_batch_has(penalty: str) -> None:
    split, after = fake_split(16, 10, (1, 28, 28)), []
    for accumulate in (1, 4):
        recipe = small_recipe("batch=16", f"accumulate={accumulate}", "model.routing=discriminative",
                              f"model.options.penalty={penalty}", "model.options.rate=1e-3", "model.options.strength=1")
        stream = ImageStream(split, recipe.augment, Share(16), 10, 0)
        torch.manual_seed(0)
        model = create_model(recipe.model.name, **recipe.model.overrides)
        start, plan = model.capsules.layers[0].coefficients.clone(), stream.plan(0)
        Step(model, stream, recipe, "top1", Workers(CPU))(plan.index[0], plan.noise[0], 0)
        after.append(model.capsules.layers[0].coefficients - start)
    torch.testing.assert_close(after[0], after[1], rtol=1e-5, atol=1e-8)
    assert after[0].abs().max() > 1e-3


def test_average_by_hand() -> None:
    recipe = small_recipe("ema=0.75")
    stream = ImageStream(fake_split(16, 10, (1, 28, 28)), recipe.augment, Share(8), 10, 0)
    model = create_model(recipe.model.name, **recipe.model.overrides)
    step = Step(model, stream, recipe, "top1", Workers(CPU))
    before = model.capsules.layers[0].weight.detach().clone()
    plan = stream.plan(0)
    step(plan.index[0], plan.noise[0], 0)
    after = model.capsules.layers[0].weight.detach()
    torch.testing.assert_close(step.tested.capsules.layers[0].weight, 0.75 * before + 0.25 * after)


def test_an_average_has_the_statistics_averaged_and_the_counters_as_they_are() -> None:
    source = torch.nn.BatchNorm2d(2)
    average = Average(source, 0.75)
    source.running_mean.fill_(4.0)
    source.num_batches_tracked.fill_(7)
    average.follow()
    assert average.model.running_mean.tolist() == [1, 1]
    assert average.model.num_batches_tracked == 7


def test_processes_average_what_batches_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running means and variances of 0 and 1 here, and of 2 and 2 in the other process; nothing else is touched."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda x: x.add_(2))
    model = torch.nn.BatchNorm2d(1)
    Workers(CPU, 0, 2).average_statistics(model)
    assert (model.running_mean.item(), model.running_var.item()) == (1, 1.5)
    assert (model.weight.item(), model.bias.item(), model.num_batches_tracked.item()) == (1, 0, 0)


def test_an_epoch_shows_each_example_once_and_processes_share_it() -> None:
    split = fake_split(40, 10, (1, 28, 28))
    whole = ImageStream(split, Augment(shift=1), Share(8), 10, 5)
    parts = [ImageStream(split, Augment(shift=1), Share(4, rank, 2), 10, 5) for rank in (0, 1)]
    for epoch in (0, 1):
        plan = whole.plan(epoch)
        assert sorted(plan.index.flatten().tolist()) == list(range(40))
        both = [p.plan(epoch) for p in parts]
        assert torch.equal(torch.cat([p.index for p in both], 1), plan.index)
        assert torch.equal(torch.cat([p.noise for p in both], 1), plan.noise)
    assert not torch.equal(whole.plan(0).index, whole.plan(1).index)
    assert not torch.equal(whole.plan(0).noise, whole.plan(1).noise)


def test_alternating_flips_show_both_faces_equally_often() -> None:
    split = fake_split(40, 10, (1, 28, 28))
    stream = ImageStream(split, Augment(shift=1, flip=True, alternate=True), Share(8), 10, 5)
    mirrored = torch.zeros(4, 40, dtype=torch.bool)
    for epoch in range(4):
        plan = stream.plan(epoch)
        mirrored[epoch, plan.index.flatten()] = plan.noise[..., 2].flatten() < 0.5
    assert torch.equal(mirrored[0], ~mirrored[1])
    assert torch.equal(mirrored[0], mirrored[2])
    assert torch.equal(mirrored[1], mirrored[3])
    assert 5 < int(mirrored[0].sum()) < 35
    with pytest.raises(ValueError, match=r"augment\.alternate: expected augment\.flip=true"):
        small_recipe("alternate=true")


def test_pairs_are_new_in_every_epoch_and_shared() -> None:
    pairs = MultiMNIST(fake_split(40, 10, (1, 28, 28)))
    whole = PairStream(pairs, Share(8), 3)
    parts = [PairStream(pairs, Share(4, rank, 2), 3) for rank in (0, 1)]
    first, second = whole.plan(0).index, whole.plan(1).index
    assert not set(first.flatten().tolist()) & set(second.flatten().tolist())
    assert torch.equal(torch.cat([p.plan(1).index for p in parts], 1), second)
    batch = whole.batch(first[0], whole.plan(0).noise[0])
    assert batch.inputs.shape == (8, 1, 36, 36)
    assert batch.pictures is not None
    assert batch.pictures.shape == (8, 2, 1, 36, 36)
    assert (batch.targets.sum(1) == 2).all()


def test_augmentation_uses_each_number_for_one_thing() -> None:
    spec = Augment(shift=1, crop=24, padding=2, flip=True, brightness=0.2, contrast=(0.5, 1.5), cutout=5, mixup=0.2,
                   cutmix=1.0)  # fmt: skip
    augment = Augmentation(spec)
    assert augment.columns == 15
    images, labels = fake_split(6, 10, (1, 28, 28)).images, torch.arange(6)
    noise = torch.rand(6, 15)
    out, targets = augment(images, labels, noise, 10)
    assert out.shape == (6, 1, 24, 24)
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    for column in range(15):
        other = noise.clone()
        other[:, column] = (other[:, column] + 0.5) % 1
        assert not torch.equal(augment(images, labels, other, 10)[0], out), column


def test_augmentation_reaches_both_ends_of_its_ranges() -> None:
    """Numbers of 0, and as near to 1 as they come."""
    images, labels = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64)

    def ends(spec: Augment) -> list[Tensor]:
        augment = Augmentation(spec)
        noises = (torch.full((1, augment.columns), u) for u in (0.0, 1 - 2.0**-24))
        return [(augment(images, labels, u, 10)[0] * 255).round()[0, 0] for u in noises]

    whole = images[0, 0].float()
    first, last = ends(Augment(shift=1))
    assert torch.equal(first[:3, :3], whole[1:, 1:])
    assert torch.equal(last[1:, 1:], whole[:3, :3])
    first, last = ends(Augment(crop=3))
    assert torch.equal(first, whole[:3, :3])
    assert torch.equal(last, whole[1:, 1:])
    first, last = ends(Augment(crop=4, padding=1))
    assert torch.equal(first[1:, 1:], whole[:3, :3])
    assert torch.equal(last[:3, :3], whole[1:, 1:])
    first, last = ends(Augment(flip=True))
    assert torch.equal(first, whole.flip(-1))
    assert torch.equal(last, whole)
    first, last = ends(Augment(brightness=0.1))
    assert torch.equal(first, (whole - 25.5).clamp(min=0).round())
    torch.testing.assert_close(last, whole + 25.5, rtol=0, atol=0.51)


def test_images_are_resized_once_in_every_split() -> None:
    opened = sources.open_sources(small_recipe("data.resize=14"), None, CPU, Share(8))
    held = [opened.train.split, opened.validation.split, opened.test.split]
    assert [tuple(x.images.shape[1:]) for x in held] == [(1, 14, 14)] * 3


def test_held_out_examples_are_the_same_ones_differently_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, root: Any, bright: int = 0) -> Any:
        whole = fake_load_data(name)
        return replace(whole, train=replace(whole.train, images=whole.train.images | bright))

    monkeypatch.setattr(sources, "load_data", load)
    plain, made = (sources.load_splits(small_recipe(*more).data, None, CPU) for more in ((), ("data.held.bright=1",)))
    assert torch.equal(made[0].train.images, plain[0].train.images)
    assert torch.equal(made[1].images, plain[1].images | 1)
    assert torch.equal(made[1].labels, plain[1].labels)


def test_evaluation_takes_the_centre_of_what_training_crops() -> None:
    split = fake_split(10, 10, (1, 28, 28))
    (batch,) = HeldImages(split, 24, 10).batches(10)
    torch.testing.assert_close(batch.inputs, split.images[:, :, 2:26, 2:26].float() / 255)


def test_wrong_settings_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.batch: expected at most 64"):
        train(small_recipe("batch=65"), place(tmp_path))
    with pytest.raises(ValueError, match=r"loss\.reconstruction: capsnet_tiny has no decoder"):
        train(small_recipe("model.decoder=false"), place(tmp_path))
    for asks in ("select=validation", "stop_error=5"):
        with pytest.raises(ValueError, match=rf"train\.{asks.split('=')[0]}: expected validation data .*validation=N"):
            train(small_recipe(asks, "validation=0"), place(tmp_path))
    with pytest.raises(ValueError, match="augment: composed images take none"):
        train(small_recipe("data.name=multimnist", "model.image=[1, 36, 36]"), place(tmp_path))
    with pytest.raises(ValueError, match="device: expected auto, cpu"):
        find_device("gpu")


def test_a_capture_that_fails_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe()
    stream = ImageStream(fake_split(16, 10, (1, 28, 28)), recipe.augment, Share(8), 10, 0)
    step = Step(create_model(recipe.model.name, **recipe.model.overrides), stream, recipe, "top1", Workers(CPU))

    class NoGraph:
        def __enter__(self) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: NoGraph())
    captured = CapturedStep(step)
    captured.warm = WARM_UP
    plan = stream.plan(0)
    captured.index, captured.noise = plan.index[0], plan.noise[0]
    with pytest.raises(RuntimeError, match=r"could not be captured.*not permitted.*train\.capture=false"):
        captured(plan.index[0], plan.noise[0], 0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "overrides",
    [(), MIXED, ("precision=bf16",), ("optimiser.kind=sgd", "optimiser.momentum=0.9"),
     ("optimiser.kind=muon", "optimiser.momentum=0.95", "optimiser.weight_decay=0.1")],
)  # fmt: skip
def test_a_captured_run_is_the_eager_one(tmp_path: Path, quick: None, overrides: tuple[str, ...]) -> None:
    for name in ("true", "false"):
        train(small_recipe(*overrides, f"capture={name}"), Place("cuda", str(tmp_path / name)))
    captured, eager = ([m["loss"] for m in metrics(tmp_path / n)] for n in ("true", "false"))
    assert captured == pytest.approx(eager, rel=2e-2 if "precision=bf16" in overrides else 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("overrides", [(), MIXED, ("precision=bf16",)])
def test_a_captured_run_resumes(tmp_path: Path, quick: None, overrides: tuple[str, ...]) -> None:
    """Convolutions add up in an order of their own on a GPU, so not bit for bit."""
    recipe = small_recipe(*overrides)
    train(recipe, Place("cuda", str(tmp_path / "whole")))
    with pytest.raises(Stopped):
        train(recipe, Place("cuda", str(tmp_path / "parts")), StopAt(13, signal.SIGTERM))
    train(recipe, Place("cuda", str(tmp_path / "parts"), resume=True))
    whole, parts = ([m["loss"] for m in metrics(tmp_path / n)] for n in ("whole", "parts"))
    assert parts == pytest.approx(whole, rel=2e-2 if "precision=bf16" in overrides else 1e-3)
