"""The one training loop: CPU, one GPU, or as many processes as torchrun starts.

    train(read_recipe("tiny"))

What a step does is in step.py, where its images come from in batches.py, what is written in run_folder.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .batches import Share
from .evaluate import Evaluation, evaluate, score_threshold
from .models import create_model
from .pictures import draw_curve, draw_reconstructions
from .recipe import Recipe
from .results import make_result
from .run_folder import RunFolder, run_name
from .sizing import own_command
from .sources import Sources, open_sources
from .step import Step, make_step
from .workers import Stopped, StopSignals, Workers, join_workers, set_precision

DEV_STEPS = 20


@dataclass(frozen=True)
class Place:
    """Where a run happens and how it is begun. dev: a few steps on a few hundred examples, to see that it works."""

    device: str = "auto"
    out: str | None = None
    data: str | None = None
    resume: bool = False
    fresh: bool = False
    tensorboard: bool = False
    dev: bool = False
    named: str = ""  # how the command line called the recipe, for the command to resume it with


class Watch:
    """Told what happens; this one is silent. The command line's is a progress bar."""

    def begin(self, title: str, total: int, at: int) -> None: ...

    def progress(self, at: int, loss: float, error: float, images_s: float) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, the test evaluation, and what result.json says."""

    folder: Path
    test: Evaluation
    result: dict[str, Any]


def train(recipe: Recipe, place: Place = Place(), watch: Watch = Watch()) -> Outcome:
    """Train, evaluate on held-out data as it goes, test at the end. Raises Stopped, its state saved, on a signal."""
    workers = join_workers(place.device)
    if place.dev:
        recipe = replace(recipe, train=replace(recipe.train, steps=DEV_STEPS, evaluate_every=10**6))
    spec, main = recipe.train, workers.rank == 0
    watch = watch if main else Watch()
    set_precision(spec.precision)
    share = Share(spec.batch, workers.rank, workers.world)
    sources = open_sources(recipe, place.data, workers.device, share, dev=place.dev)
    stream = sources.train
    assert stream is not None
    torch.manual_seed(spec.seed)
    model = create_model(recipe.model.name, **sources.options | recipe.model.overrides).to(workers.device)
    if spec.channels_last:
        convolutions_last(model)
    step, advance = make_step(model, stream, recipe, sources.test.rule, workers)
    run = open_run(recipe, place, workers)
    at = run.resume(step) if place.resume else 0
    if at == 0:
        torch.manual_seed(spec.seed + workers.rank)  # dropout differs from process to process
    watch.begin(f"{recipe.name}: {recipe.model.name} on {recipe.data.name}, {workers.device}", step.total, at)
    plan, read_at, read_s, done = None, at, run.wall_s, False
    with StopSignals() as stop:
        while at < step.total and not done:
            epoch, k = divmod(at, stream.steps)
            plan = stream.plan(epoch) if plan is None or k == 0 else plan
            advance(plan.index[k], plan.noise[k], at)
            at += 1
            epoch_ends = k + 1 == stream.steps or at == step.total
            if at % spec.log_every == 0 or epoch_ends:
                loss, error, images = step.read()
                rate = images / max(run.wall_s - read_s, 1e-9)
                watch.progress(at, loss, error, rate)
                if main:
                    lr = step.schedule.at(at - 1).lr
                    run.log("train", at, epoch=epoch, loss=loss, error=error, lr=lr, images_s=round(rate, 1))
                read_at, read_s = at, run.wall_s
            if epoch_ends and ((epoch + 1) % spec.evaluate_every == 0 or at == step.total):
                done = look(step, sources, run, at, watch)
                read_s = run.wall_s
            asked = workers.agreed(stop.number > 0) if workers.world == 1 or read_at == at else False
            if main and at < step.total and (asked or run.save_due()):
                run.save(step, at)
            if asked and at < step.total and not done:
                raise Stopped(stop.number or 15, run.resume_command)
    return finish(step, sources, run, at, watch)


def convolutions_last(model: nn.Module) -> None:
    """Convolutions compute channels last, tensor cores' own order; capsule weights keep theirs."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def open_run(recipe: Recipe, place: Place, workers: Workers) -> RunFolder:
    """The run's folder; the first process makes it ready, the others wait."""
    path = Path(place.out or Path("runs") / ("dev-" * place.dev + run_name(recipe)))
    named = [place.named] if place.named else own_command(recipe)
    command = ["flashcaps", "train", *named, *recipe.overrides]
    flags = {"--seed": recipe.train.seed, "--device": place.device, "--out": place.out, "--data": place.data}
    for flag, value in flags.items():
        command += [] if value in (None, "auto", 0) else [flag, str(value)]
    run = RunFolder(path, recipe, command, tensorboard=place.tensorboard and workers.rank == 0)
    if workers.rank == 0:
        run.open(place.resume, place.fresh or place.dev)
    workers.agreed(False)
    return run


def look(step: Step, sources: Sources, run: RunFolder, at: int, watch: Watch) -> bool:
    """Evaluate where the recipe says, keep the best weights; whether the recipe's stop_error is reached."""
    spec = step.recipe.train
    held, split = (sources.test, "test") if spec.select == "test" else (sources.validation, "validation")
    step.workers.average_statistics(step.model)
    if held is None:
        return False
    result = measure(step, step.tested, held)
    epoch = (at - 1) // step.stream.steps
    if step.workers.rank == 0:
        plain = measure(step, step.model, held).error if step.average is not None else result.error
        run.log("evaluation", at, epoch=epoch, split=split, error=result.error, error_without_average=plain)
        if not run.best or result.error < run.best["error"]:
            run.best = {"error": result.error, "epoch": epoch}
            run.weights("best", step.tested, at)
        watch.say(f"epoch {epoch + 1}: {split} error {result.error:.2f} % (best {run.best['error']:.2f} %)")
    return result.error <= spec.stop_error if spec.stop_error else False


def measure(step: Step, model: nn.Module, held: Any) -> Evaluation:
    return evaluate(model, held, batch=step.recipe.train.batch, threshold=score_threshold(step.recipe.loss.kind))


def finish(step: Step, sources: Sources, run: RunFolder, at: int, watch: Watch) -> Outcome:
    """Test the weights the recipe selects, write weights, pictures and result."""
    recipe, workers = step.recipe, step.workers
    chosen, model = "ema" if step.average is not None else "last", step.tested
    if workers.rank == 0:
        run.weights("last", step.model, at)
        if step.average is not None:
            run.weights("ema", step.average.model, at)
    workers.agreed(False)
    if recipe.train.select != "last" and (run.path / "best.safetensors").is_file():
        from .checkpoint import load

        chosen, model = "best", load(run.path, weights="best", device=workers.device)
    test = measure(step, model, sources.test)
    result = make_result(recipe, run, step, test, chosen, at)
    if workers.rank == 0:
        run.log("test", at, error=test.error, weights=chosen)
        run.finish(result)
        for trouble in (draw_curve(run.path, run.metrics()), draw_reconstructions(run.path, model, sources.test)):
            if trouble:
                watch.say(trouble)
    return Outcome(run.path, test, result)
