"""No step with NaN or Inf: not applied, counted, explained, and invisible where nothing is wrong."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashcaps.training import loader as sources
from flashcaps.training.batches import Batch, ImageStream
from flashcaps.training.checkpoint import load_state
from flashcaps.training.guard import NonFinite, diagnose
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.run_folder import RunFolder, read_metrics
from flashcaps.training.step import TrainStep

from ..fake_data import small_recipe, small_step

RADAM = ("optimiser.kind=radam", "schedule.kind=one_cycle", "schedule.momentum=[0.999, 0.8991]")
OPTIMISERS = [(), ("optimiser.kind=adam",), ("optimiser.kind=sgd", "optimiser.momentum=0.9"), RADAM,
              ("optimiser.kind=muon", "optimiser.momentum=0.9"),
              ("model.routing=discriminative", "model.options.rate=0.001")]  # fmt: skip


class Stream(ImageStream):
    """Examples that `spoil` names are full of NaN."""

    spoil: tuple[int, ...] = ()

    def batch(self, index: Tensor, noise: Tensor) -> Batch:
        batch = super().batch(index, noise)
        bad = torch.zeros_like(index, dtype=torch.bool)
        for example in self.spoil:  # a number at a time: a captured step copies no list to the device
            bad |= index == example
        return batch._replace(inputs=torch.where(bad[:, None, None, None], float("nan"), batch.inputs))


def make(*overrides: str) -> tuple[TrainStep, Any]:
    return small_step(*overrides, stream=Stream)


def everything(step: TrainStep) -> list[Tensor]:
    moments = [x for state in step.optimiser.state.values() for x in state.values() if isinstance(x, Tensor)]
    return [x.clone() for x in (*step.model.state_dict().values(), *moments)]


@pytest.mark.parametrize("good", [0, 3])
@pytest.mark.parametrize("overrides", OPTIMISERS)
def test_a_bad_step_and_all_after_it_change_nothing(overrides: tuple[str, ...], good: int) -> None:
    step, plan = make(*overrides)
    for k in range(good):
        step(plan.index[k], plan.noise[k], k)
    before = everything(step)
    step.stream.spoil = (int(plan.index[good][5]),)
    for k in range(good, good + 3):
        step(plan.index[k], plan.noise[k], k)
    after = everything(step)[: len(before)]  # in its first step, an optimiser adds its moments
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not step.guard.healthy
    assert step.guard.check() == good


@pytest.mark.parametrize("overrides", OPTIMISERS)
def test_a_good_run_is_bit_for_bit_that_of_no_guard(overrides: tuple[str, ...]) -> None:
    after = []
    for guarded in (True, False):
        step, plan = make(*overrides)
        if not guarded:
            step.optimiser.found_inf = None  # type: ignore[attr-defined]
        for k in range(6):
            step(plan.index[k], plan.noise[k], k)
            assert k % 2 or step.guard.check() is None  # each check starts the count again
        after.append(everything(step))
    assert all(torch.equal(a, b) for a, b in zip(*after, strict=True))


def test_coefficients_that_overflow_at_once_are_put_back_at_once() -> None:
    """Though the loss and the gradients of that step are finite."""
    step, plan = make("model.routing=discriminative")
    layer: Any = step.model.capsules.layers[0]
    layer.routing = dataclasses.replace(layer.routing, rate=1e38, strength=1e38)
    start = layer.coefficients.clone()
    step(plan.index[0], plan.noise[0], 0)
    assert torch.equal(layer.coefficients, start)
    assert step.guard.check() == 0


def test_a_loss_that_is_not_finite_is_noticed_where_gradients_are(monkeypatch: pytest.MonkeyPatch) -> None:
    step, plan = make()
    loss_of, before = step.loss_of, [p.clone() for p in step.parameters]

    def unbounded(network: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        scores, loss = loss_of(network, batch)
        return scores, loss + float("inf")

    monkeypatch.setattr(step, "loss_of", unbounded)
    step(plan.index[0], plan.noise[0], 0)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in step.parameters)
    assert all(torch.equal(a, p) for a, p in zip(before, step.parameters, strict=True))
    assert step.guard.check() == 0


def diagnosis(step: TrainStep, plan: Any) -> str:
    return diagnose(step, plan.index[0], plan.noise[0])


def test_the_cause_is_named() -> None:
    step, plan = make()
    assert diagnosis(step, plan) == ""
    step.stream.spoil = tuple(plan.index[0][2:4].tolist())
    assert diagnosis(step, plan) == f"input: NaN or Inf in 2 of 8 examples, first {int(plan.index[0][2])}"
    step.stream.spoil = ()
    handle = step.model.primary.register_forward_hook(lambda m, i, out: out._replace(pose=out.pose / 0))
    assert diagnosis(step, plan).startswith("forward: primary (PrimaryCapsules): its output holds ")
    handle.remove()
    weight: nn.Parameter = step.model.capsules.layers[0].weight  # type: ignore[union-attr,assignment]
    handle = weight.register_hook(lambda g: g * float("inf"))
    assert diagnosis(step, plan).startswith("backward: the gradient of capsules.layers.0.weight holds ")
    handle.remove()
    with torch.no_grad():
        weight[0, 0, 0, 0] = float("nan")
    expected = f"weights: capsules.layers.0.weight holds 1 NaN or Inf of {weight.numel():,}; the step before made it"
    assert diagnosis(step, plan) == expected


def test_the_cause_is_named_where_batch_statistics_have_seen_it() -> None:
    step, plan = make("model.backbone.norm=before")
    step.stream.spoil = (int(plan.index[0][2]),)
    step(plan.index[0], plan.noise[0], 0)
    norm: nn.Module = step.model.backbone[1]  # type: ignore[index]
    assert not bool(norm.running_mean.isfinite().all())
    assert diagnosis(step, plan) == f"input: NaN or Inf in 1 of 8 examples, first {int(plan.index[0][2])}"
    step.stream.spoil = ()
    held = f"holds {norm.running_mean.numel()} NaN or Inf of {norm.running_mean.numel()}"
    assert diagnosis(step, plan) == f"statistics: backbone.1.running_mean {held}, of finite batches"


def test_a_state_with_nan_is_not_saved(tmp_path: Path) -> None:
    step, _ = make()
    run = RunFolder(tmp_path, step.recipe, [])
    run.save(step, 1)
    with torch.no_grad():
        step.parameters[0].view(-1)[0] = float("inf")
    run.save(step, 2)
    assert load_state(tmp_path)["at"] == 1


@pytest.fixture
def spoiled(fake_data: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training on data with one bad example."""
    monkeypatch.setattr(sources, "ImageStream", Stream)
    monkeypatch.setattr(Stream, "spoil", (13,))


@pytest.mark.usefixtures("spoiled")
def test_a_run_stops_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(NonFinite, match=r"NaN or Inf at step \d+ .*: input: NaN or Inf in 1 of 8 examples, first 13; "
                                        r".*no state was saved before it; try a lower optimiser\.lr") as caught:
        train(small_recipe("log_every=5"), RunOptions("cpu", str(tmp_path)))
    assert "\n" not in str(caught.value)
    report = json.loads((tmp_path / "nonfinite.json").read_text())
    assert 13 in report["indices"][0]
    assert f"at step {report['step']} " in str(caught.value)
    assert not (tmp_path / "run.lock").exists()
    assert all(line["step"] <= report["step"] for line in read_metrics(tmp_path))


@pytest.mark.usefixtures("spoiled")
def test_a_weight_that_runs_away_in_the_last_step_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "spoil", ())
    step = TrainStep.__call__

    def run_away(self: TrainStep, index: Tensor, noise: Tensor, at: int) -> None:
        step(self, index, noise, at)
        if at == 9:
            self.parameters[0].data.fill_(float("inf"))

    monkeypatch.setattr(TrainStep, "__call__", run_away)
    with pytest.raises(NonFinite, match=r"at step 9 .*weights: backbone\.0\.weight holds"):
        train(small_recipe("train.steps=10"), RunOptions("cpu", str(tmp_path)))
    assert not (tmp_path / "result.json").exists()


@pytest.mark.gpu
@pytest.mark.usefixtures("spoiled")
@pytest.mark.parametrize("overrides", OPTIMISERS)
def test_a_captured_run_stops_at_the_same_step(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    found = []
    for name in ("true", "false"):
        with pytest.raises(NonFinite):
            train(small_recipe("log_every=5", f"capture={name}", *overrides), RunOptions("cuda", str(tmp_path / name)))
        found.append(json.loads((tmp_path / name / "nonfinite.json").read_text()))
    assert found[0] == found[1]
