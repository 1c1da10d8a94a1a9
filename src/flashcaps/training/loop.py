"""The one training loop: CPU, one GPU, or as many processes as torchrun starts.

    train(read_recipe("tiny"))

What a step does is in step.py, where its images come from in batches.py, what is written in run_folder.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..data import Dataset, from_torch
from ..models import create_model
from ..routing.checks import TooLarge
from .autosize import own_command
from .batches import Share
from .callbacks import CSV, Callback, Started
from .checkpoint import load
from .distributed import Stopped, Workers, join_workers, lost_workers, recorded_signals, set_precision, was_restarted
from .evaluate import Evaluation, evaluate_as
from .guard import first_bad, raise_non_finite
from .loader import Sources, open_sources
from .memory import batch_that_fits
from .plots import draw_pictures
from .recipe import Recipe
from .results import run_result
from .routing_measure import has_routing_logits, probe_due, probe_logits
from .run_folder import RunFolder, run_name
from .step import TrainStep

DEV_STEPS = 20
Callbacks = Sequence[Callback]


@dataclass(frozen=True)
class RunOptions:
    """Where a run happens and how it starts. dev: a few steps on a few hundred examples, as a trial.

    recipe_name, flags: the recipe's name and further flags on the command line, for the command that resumes the run.
    """

    device: str = "auto"
    out: str | None = None
    data: str | None = None
    resume: bool = False
    fresh: bool = False
    dev: bool = False
    recipe_name: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, the test evaluation, and what result.json says."""

    folder: Path
    test: Evaluation
    result: dict[str, Any]


def train(recipe: Recipe, options: RunOptions = RunOptions(), callbacks: Callbacks = (), *,
          data: Dataset | Mapping[str, Any] | None = None) -> Outcome:  # fmt: skip
    """Trains, evaluates on held-out data meanwhile, and tests at the end. On a signal, saves and raises Stopped.

    data: used instead of those the recipe names; the arguments of `flashcaps.data.from_torch`, {"train": a torch
    Dataset, "test": another}, or its result. The model is built for their size and classes.
    """
    workers = join_workers(options.device)
    if isinstance(data, Mapping):
        data = from_torch(**data)
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, name=data.name, options={}, held={}))
    if options.dev:
        recipe = replace(recipe, train=replace(recipe.train, steps=DEV_STEPS, evaluate_every=10**6))
    set_precision(recipe.train.precision)
    run = make_run(recipe, options)
    if data is not None:
        run.command = []  # no command line has them
    resume = workers.shared(options.resume or (was_restarted() and run.begun))
    with claimed(run, resume, options, workers):
        return train_once(run, options, workers, [CSV(), *callbacks] if workers.rank == 0 else [], resume, data)


def train_once(
    run: RunFolder, options: RunOptions, workers: Workers, callbacks: Callbacks, resume: bool,
    data: Dataset | None = None,
) -> Outcome:  # fmt: skip
    """Builds everything, and trains from the start, or from the newest state, to the end."""
    recipe = run.recipe
    state = workers.shared(run.newest() if resume and workers.rank == 0 else None)
    share = make_share(recipe, state, workers)
    sources = open_sources(recipe, options.data, workers.device, share, dev=options.dev, given=data)
    stream = sources.train
    assert stream is not None
    if state and state.get("examples", stream.examples) != stream.examples:
        raise ValueError(f"--resume: expected the {state['examples']:,} training examples that the run was started "
                         f"with, got {stream.examples:,}; give the same data, or start another run")
    spec = recipe.train
    stops = "stop_error" * bool(spec.stop_error) or "patience" * bool(spec.patience)
    if sources.validation is None and (spec.select == "validation" or (stops and spec.select == "last")):
        asks = "select" if spec.select == "validation" else stops
        raise ValueError(f"train.{asks}: expected validation data to go by, got none of {recipe.data.name}; hold some "
                         "out of training with data.validation=N")
    run.class_names = sources.dataset.class_names
    torch.manual_seed(recipe.train.seed)
    model = create_model(recipe.model.name, **sources.options | recipe.model.overrides).to(workers.device)
    step = TrainStep(model, stream, recipe, sources.test.rule, workers)
    if workers.rank == 0:
        run.open(resume)
    at = run.restore(step, state)
    if at == 0:
        torch.manual_seed(recipe.train.seed + workers.rank)  # dropout differs from process to process

    def compiled(kernels: int, total: int) -> None:
        for callback in callbacks:
            callback.compiled(kernels, total)

    started, told, result = Started(recipe, run.path, model, workers.device, step.total, at), [], None
    try:
        for callback in callbacks:
            callback.start(started)
            told.append(callback)
        if workers.device.type == "cuda":
            plan = stream.plan(at // stream.steps)
            if workers.local == 0:  # the other processes of its machine find the kernels in Triton's cache
                step.compile_kernels(plan.index[0], plan.noise[0], compiled)
            workers.agreed(False)
        with recorded_signals() as signals:
            at = train_loop(step, sources, run, at, callbacks, signals)
        outcome = finish(step, sources, run, at)
        result = outcome.result
        return outcome
    finally:
        for callback in told:
            callback.end(result)


def train_loop(
    step: TrainStep, sources: Sources, run: RunFolder, at: int, callbacks: Callbacks, signals: list[int]
) -> int:
    """Trains from step `at` to the last, or until the recipe or a callback ends it; returns the steps done."""
    spec, workers, stream = run.recipe.train, step.workers, step.stream
    main = workers.rank == 0
    plan, read_at, read_s, done = None, at, run.wall_s, False
    while at < step.total and not done:
        epoch, k = divmod(at, stream.steps)
        plan = stream.plan(epoch) if plan is None or k == 0 else plan
        with batch_that_fits(step, plan.index[k], plan.noise[k]):
            step(plan.index[k], plan.noise[k], at)
        at += 1
        if main and probe_due(at) and has_routing_logits(step.model) and step.guard.healthy:
            with suppress(TooLarge):  # the guard reports weights that diverge
                run.log("routing", at, change=probe_logits(step.model, stream.batch(plan.index[k], plan.noise[k])))
        epoch_ends = k + 1 == stream.steps or at == step.total
        if at % spec.log_every == 0 or epoch_ends:
            applied = step.guard.check()
            if applied is not None:
                raise_non_finite(step, read_at + applied, run.path)
            loss, error, _ = step.read()
            images = (at - read_at) * stream.share.batch * workers.world  # totals of a resumed run have those before it
            rate = images / max(run.wall_s - read_s, 1e-9)
            if main:
                metrics = {"epoch": epoch, "loss": loss, "error": error, "lr": step.rates(at - 1).lr,
                           "images_s": round(rate, 1)}  # fmt: skip
                run.log("train", at, **metrics)
                for callback in callbacks:
                    callback.step(at, metrics)
            read_at, read_s = at, run.wall_s
        if epoch_ends and workers.agreed(bool(first_bad(step.model.state_dict().items()))):
            raise_non_finite(step, at - 1, run.path)
        if epoch_ends:
            held = {}
            if (epoch + 1) % spec.evaluate_every == 0 or at == step.total:
                try:
                    held = validate(step, sources, run, at)
                except TooLarge:  # the weights diverged; the next step would have failed
                    raise_non_finite(step, at - 1, run.path)
            done = is_done(step, run, at, {"epoch": epoch, **held}, callbacks)
            read_s = run.wall_s
        asked = workers.agreed(bool(signals)) if workers.world == 1 or read_at == at else False
        if main and at < step.total and not done and (asked or run.save_due()):
            run.save(step, at)
        if asked and at < step.total and not done:
            raise Stopped(signals[-1] if signals else 15, run.resume_command)
    return at


def make_run(recipe: Recipe, options: RunOptions) -> RunFolder:
    """The run's folder, to which nothing is written yet, with the command that resumes the run."""
    path = Path(options.out or Path("runs") / ("dev-" * options.dev + run_name(recipe)))
    name = [options.recipe_name] if options.recipe_name else own_command(recipe)
    command = ["flashcaps", "train", *name, *recipe.overrides]
    has_own_seed = options.recipe_name.endswith(".toml")  # the recipes of flashcaps have seed 0
    seed = recipe.train.seed if recipe.train.seed or has_own_seed else None
    flags = {"--seed": seed, "--device": options.device, "--out": options.out, "--data": options.data}
    for flag, value in flags.items():
        command += [] if value in (None, "auto") else [flag, str(value)]
    command += ["--dev"] * options.dev + [*options.flags]
    return RunFolder(path, recipe, command)


@contextmanager
def claimed(run: RunFolder, resume: bool, options: RunOptions, workers: Workers) -> Iterator[None]:
    """A context that locks the run's folder, and whose errors name the processes that do not answer any more."""
    try:
        if workers.rank == 0:
            trial = options.dev and options.out is None  # overwrites an earlier trial, in a folder of their own
            run.claim(resume, options.fresh or trial, options.out is not None)
        workers.agreed(False)
        yield
    except RuntimeError as error:
        with recorded_signals():  # torchrun has noticed, too, and sends SIGTERM meanwhile
            lost = lost_workers(workers, error)
        if lost:
            cause = str(error).split(". ")[0]
            raise RuntimeError(f"lost {lost} of {workers.world} ({cause}); start all of them again: "
                               f"{run.resume_command}") from error
        raise
    finally:
        run.release()


def make_share(recipe: Recipe, state: dict[str, Any] | None, workers: Workers) -> Share:
    """This process's part of a step. A resumed run keeps the number of images a step, with any number of processes."""
    images = (state or {}).get("images", recipe.train.batch * workers.world)
    if images % (workers.world * recipe.train.accumulate):
        raise ValueError(f"--resume: expected a number of processes that can share a step of {images} images in "
                         f"{recipe.train.accumulate} parts, got {workers.world}; start a divisor of {images}")
    return Share(images // workers.world, workers.rank, workers.world)


def validate(step: TrainStep, sources: Sources, run: RunFolder, at: int) -> dict[str, Any]:
    """Evaluates on validation data (or test data, where the recipe selects by them) and keeps the best weights.

    Returns split, error and best, the lowest error so far; nothing where there are no such data.
    """
    spec = step.recipe.train
    held, split = (sources.test, "test") if spec.select == "test" else (sources.validation, "validation")
    for model in [step.model] if step.average is None else [step.model, step.average.model]:
        step.workers.average_statistics(model)
    if held is None:
        return {}
    result = evaluate_as(step.recipe, step.tested, held, spec.batch)
    epoch = (at - 1) // step.stream.steps
    if step.workers.rank == 0:
        plain = result.error
        if step.average is not None:
            plain = evaluate_as(step.recipe, step.model, held, spec.batch).error
        test = {}
        if spec.test_curve:
            test["test_error"] = evaluate_as(step.recipe, step.tested, sources.test, spec.batch).error
        run.log("evaluation", at, epoch=epoch, split=split, error=result.error, error_without_average=plain, **test)
        if not run.best or result.error < run.best["error"]:
            run.best = {"error": result.error, "epoch": epoch}
            run.weights("best", step.tested, at)
    return {"split": split, "error": result.error, "best": run.best.get("error")}


def is_done(step: TrainStep, run: RunFolder, at: int, metrics: dict[str, Any], callbacks: Callbacks) -> bool:
    """Calls the callbacks of an epoch. Whether the run ends, by stop_error, by patience or by a callback."""
    spec = step.recipe.train
    done = any([callback.epoch(at, metrics) for callback in callbacks])
    if "error" in metrics and run.best:
        done |= bool(spec.stop_error) and metrics["error"] <= spec.stop_error
        done |= bool(spec.patience) and metrics["epoch"] - run.best["epoch"] >= spec.patience
    return bool(step.workers.shared(done))  # of the first process, as errors may differ


def finish(step: TrainStep, sources: Sources, run: RunFolder, at: int) -> Outcome:
    """Tests the weights that the recipe selects; writes weights, pictures and the result."""
    recipe, workers = step.recipe, step.workers
    chosen, model = "ema" if step.average is not None else "last", step.tested
    if workers.rank == 0:
        run.weights("last", step.model, at)
        if step.average is not None:
            run.weights("ema", step.average.model, at)
    workers.agreed(False)
    if recipe.train.select != "last" and (run.path / "best.safetensors").is_file():
        chosen, model = "best", load(run.path, weights="best", device=workers.device)
    test = evaluate_as(recipe, model, sources.test, recipe.train.batch)
    result = run_result(recipe, run, step, test, chosen, at)
    if workers.rank == 0:
        run.log("test", at, error=test.error, weights=chosen)
        run.finish(result)
        draw_pictures(run.path, model, sources.test)
    return Outcome(run.path, test, result)
