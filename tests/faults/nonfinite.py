"""NaN or Inf in input, routing, loss or gradient: not applied, every rank stops at that step and says why."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashcaps.data import load_data
from flashcaps.training import loop as training
from flashcaps.training import step as stepping
from flashcaps.training.batches import Batch, ImageStream, Share
from flashcaps.training.checkpoint import load_state
from flashcaps.training.loader import holdout
from tests.faults.child import assert_equal, prepare, ranks, read_end, start, write_end

BAD = 13  # the example whose batch goes wrong
KINDS = {"input": "input: NaN or Inf in 1 of", "routing": "forward: capsules", "overflow": "forward: capsules",
         "loss": "forward: the loss is", "gradient": "backward: the gradient of"}  # fmt: skip
LOGGED = "log_every=5"  # so that the fault is met between two checks
Damage = Callable[[Tensor], Tensor]


def poison(kind: str) -> None:
    """Whatever `kind` says of the batch with the example BAD becomes NaN or Inf."""
    batch, create, criterion = ImageStream.batch, training.create_model, stepping.criterion
    now = {"bad": False}

    def watched(self: ImageStream, index: Tensor, noise: Tensor) -> Batch:
        made = batch(self, index, noise)
        now["bad"] = BAD in index.tolist()
        if now["bad"] and kind == "input":
            made.inputs[index.tolist().index(BAD)] = float("nan")
        return made

    def hooked(name: str, **overrides: Any) -> Any:
        model: Any = create(name, **overrides)
        layer = model.capsules.layers[0]
        spoil: Damage = (lambda x: (x.half() * 60_000 * 60_000).float()) if kind == "overflow" else (lambda x: x / 0)
        if kind in ("routing", "overflow"):
            layer.register_forward_hook(lambda _, __, out: out._replace(pose=spoil(out.pose)) if now["bad"] else out)
        if kind == "gradient":
            layer.weight.register_hook(lambda g: g * float("nan") if now["bad"] else g)
        return model

    def judged(*arguments: Any) -> Tensor:
        return criterion(*arguments) + (float("inf") if now["bad"] and kind == "loss" else 0.0)

    ImageStream.batch = watched  # type: ignore[method-assign]
    stepping.criterion = judged
    training.create_model = hooked
    stop = training.raise_non_finite

    def told(step: Any, at: int, folder: Path) -> None:
        write_end(step, folder)
        stop(step, at, folder)

    training.raise_non_finite = told


def look_before(at: int, out: Path) -> None:
    """Only the state before step `at` of a run that nothing happens to."""
    call = stepping.TrainStep.__call__

    def called(self: stepping.TrainStep, index: Tensor, noise: Tensor, step: int) -> None:
        if step == at:
            write_end(self, out)
            raise SystemExit(0)
        call(self, index, noise, step)

    stepping.TrainStep.__call__ = called  # type: ignore[method-assign]


def bad_step(folder: Path, world: int = 2) -> tuple[int, list[list[int]]]:
    """Where BAD comes first in a run, and what each rank's batch is there."""
    train, _ = holdout(load_data("mnist", folder / "data").train, count=16)
    streams = [ImageStream(train, training.Recipe.augment, Share(8, r, world), 10, 0) for r in range(world)]
    plans = [s.plan(0).index for s in streams]
    step = next(k for k in range(len(plans[0])) if any(BAD in p[k].tolist() for p in plans))
    return step, [p[step].tolist() for p in plans]


def try_all(folder: Path, full: bool) -> int:
    prepare(folder)
    kinds = list(KINDS) if full else ["gradient"]  # every optimiser in one process: test_guard.py
    for kind in kinds:
        _one(folder, kind)
    _huge_rate(folder)
    return len(kinds) + 1


def _one(folder: Path, kind: str) -> None:
    """Two ranks, one of which meets the fault."""
    at, indices = bad_step(folder)
    clean = ranks(folder, f"{kind}.clean", LOGGED,
                  patch=functools.partial(look_before, at, folder / f"{kind}.before"))  # fmt: skip
    bad = ranks(folder, kind, LOGGED, "save_seconds=0", patch=functools.partial(poison, kind))
    for child in clean:
        child.ends_with(0)
    for child in bad:
        child.ends_with(1)
        assert f"NaN or Inf at step {at} " in child.output, child.output
    run = folder / kind
    report, state = json.loads((run / "nonfinite.json").read_text()), load_state(run)
    assert KINDS[kind] in report["diagnosis"], report
    assert (report["step"], report["indices"]) == (at, indices), report
    assert state["at"] <= at, f"a state of step {state['at']}, after step {at}"
    assert (run / report["state"]).is_file()
    assert all(bool(x.isfinite().all()) for x in state["step"]["model"].values() if torch.is_floating_point(x))
    mine, before = (read_end(folder / name) for name in (kind, f"{kind}.before"))
    assert_equal(mine["model"], before["model"])
    assert_equal(mine["optimiser"]["state"], before["optimiser"]["state"])  # rates are set before a step


def _huge_rate(folder: Path) -> None:
    """A real one: plain gradient descent that runs away."""
    child = start(folder, "huge", LOGGED, "epochs=20", "optimiser.kind=sgd", "optimiser.momentum=0.99", "lr=1e6",
                  "schedule.kind=constant", "loss.kind=cross_entropy", "reconstruction=1e6")  # fmt: skip
    child.ends_with(1)
    assert (folder / "huge" / "nonfinite.json").is_file()
