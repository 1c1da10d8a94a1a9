"""flashcaps train, flashcaps evaluate."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..routing.checks import check_choice
from ..training import loop as training
from ..training.autosize import FLAGS, own_recipe, own_text_recipe
from ..training.callbacks import CALLBACKS, Callback, Started
from ..training.checkpoint import load, write_atomic
from ..training.distributed import find_device
from ..training.evaluate import (
    Evaluation,
    Member,
    confusion_text,
    evaluate_as,
    labels_text,
    open_ensemble,
    score_threshold,
)
from ..training.loader import open_sources
from ..training.memory import keep_freed_memory, memory_warning
from ..training.recipe import Recipe, make_recipe, read_recipe
from ..training.results import duration, ensemble_result, hardware, make_result
from ..training.results import keep as keep_result
from ..training.routing_measure import RoutingMeasure, measure_routing
from .common import Algorithm, DataRoot, Device, Imports, RecipeName, RunName, Start, Weights, console, say, show_table

QUIET_S = 30  # seconds between two lines of progress without a terminal


class Bar(Callback):
    """A progress bar with loss, error, images a second and time left; it disappears at the end."""

    def start(self, run: Started) -> None:
        recipe = run.recipe
        say(f"{recipe.name}: {recipe.model.name} on {recipe.data.name}, {run.device}")
        self.printed = time.monotonic()
        self.progress_bar = Progress(
            BarColumn(None), MofNCompleteColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
        )
        self.task = self.progress_bar.add_task("", total=run.total, completed=run.at, text="")
        self.progress_bar.start()

    def compiled(self, kernels: int, total: int) -> None:
        if not kernels:
            say(f"compiling {total} kernels, once for this machine")
        self.progress_bar.update(self.task, text=f"{kernels} of {total} kernels compiled")

    def step(self, at: int, metrics: dict[str, float]) -> None:
        text = f"loss {metrics['loss']:.4f}  error {metrics['error']:.2f} %  {metrics['images_s']:,.0f} images/s"
        self.progress_bar.update(self.task, completed=at, text=text)
        if not console.is_terminal and time.monotonic() - self.printed > QUIET_S:
            self.printed = time.monotonic()
            say(f"step {at:,}  {text}")

    def epoch(self, at: int, metrics: dict[str, Any]) -> None:
        if "split" in metrics:
            text = f"{metrics['split']} error {metrics['error']:.2f} % (best {metrics['best']:.2f} %)"
            say(f"epoch {metrics['epoch'] + 1}: {text}")

    def end(self, result: dict[str, Any] | None) -> None:
        self.progress_bar.stop()


CallbackNames = Annotated[list[str] | None, typer.Option(help="also log the run to: tensorboard, wandb",
                                                         autocompletion=lambda: list(CALLBACKS))]  # fmt: skip
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value: epochs=3, train.batch=64, iterations=1")]


def train(
    recipe: RecipeName = None,
    overrides: Overrides = None,
    images: Annotated[str | None, typer.Option(help="your pictures: a folder with a folder per class")] = None,
    table: Annotated[str | None, typer.Option(help="a .csv: columns file and label, or numbers and label")] = None,
    dataset: Annotated[str | None, typer.Option(help="your pictures: a Hugging Face data set")] = None,
    text: Annotated[str | None, typer.Option(help="your texts: a .csv with columns text and label")] = None,
    transformer: Annotated[str | None, typer.Option(help="for your texts: folder or name of a transformer")] = None,
    routing: Algorithm = None,
    backbone: Annotated[str | None, typer.Option(help="for your pictures: a pretrained backbone, timm:NAME")] = None,
    size: Annotated[tuple[int, int] | None, typer.Option(help="for your pictures: height and width")] = None,
    start: Start = None,
    seed: Annotated[int | None, typer.Option(help="seed of weights, order and augmentation")] = None,
    device: Device = "auto",
    out: Annotated[str | None, typer.Option(help="the run's folder (default runs/RECIPE-SEED)")] = None,
    data: DataRoot = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an unfinished run")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="overwrite an unfinished or another run")] = False,
    dev: Annotated[bool, typer.Option("--dev", help="a few steps on a few hundred examples, as a trial")] = False,
    callback: CallbackNames = None,
    imports: Imports = None,
    show: Annotated[bool, typer.Option("--print", help="print the recipe with its overrides, and stop")] = False,
) -> None:
    """Train a recipe and test it; writes weights, curve and pictures to a folder.

    \b
    flashcaps train tiny
    flashcaps train capsnet_mnist epochs=10 model.iterations=1 --seed 1
    flashcaps train capsnet_mnist --resume
    flashcaps train capsnet_mnist epochs=10 --print
    flashcaps train --images pets/ epochs=20
    flashcaps train --images pets/ --from attention_resnet_cifar10
    flashcaps train --text reviews.csv --transformer DIR
    torchrun --nproc_per_node=2 -m flashcaps train tiny batch=25
    """
    check_out(out)
    keep_freed_memory()
    words = [word for word in (recipe, *(overrides or [])) if word is not None]
    own = _given(images=images, table=table, hub=dataset, text=text)
    choices = _given(routing=routing, size=size, transformer=transformer, backbone=backbone, start=start)
    fields = asked_recipe(own, words, choices, device)
    if seed is not None:
        fields = replace(fields, train=replace(fields.train, seed=seed))
    if show:
        typer.echo(fields.to_toml(), nl=False)
        return
    for name in callback or ():
        check_choice("--callback", name, CALLBACKS)
    flags = tuple(word for flag, given in (("--callback", callback), ("--import", imports)) for value in given or ()
                  for word in (flag, value))  # fmt: skip
    options = training.RunOptions(device, out, data, resume, fresh, dev, "" if own else words[0], flags)
    outcome = training.train(fields, options, [Bar(), *(CALLBACKS[name]() for name in callback or ())])
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        report(fields, outcome)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def asked_recipe(own: dict[str, str], words: Sequence[str], choices: dict[str, Any], device: str) -> Recipe:
    """Reads the recipe that was named, or makes one for a user's own data and prints its choices.

    own: a kind of data and its path, or {}. words: the positional arguments, with own data all overrides. choices: of
    routing, size, backbone, start (--from) and transformer, those that were given; all need own data.
    """
    if not own:
        if not words:
            raise ValueError("recipe: expected a name `flashcaps recipes` lists, or your data: --images DIR, --text "
                             "FILE")
        if choices:
            raise ValueError("--routing, --size, --backbone, --from, --transformer: expected with your own data; a "
                             "recipe takes model.routing=, data.resize=, model.backbone=, model.pretrained=, "
                             "data.transformer=")
        return read_recipe(words[0], words[1:])
    if len(own) > 1:
        raise ValueError(f"{' and '.join(FLAGS[kind] for kind in own)}: expected one of them")
    ((kind, path),) = own.items()
    wrong = next((word for word in words if "=" not in word), None)
    if not path:
        raise ValueError(f"{FLAGS[kind]}: expected the path of your data, got an empty one")
    if wrong is not None:
        raise ValueError(f"{wrong}: {FLAGS[kind]} makes the recipe itself; expected key=value after it, as epochs=3")
    if "transformer" in choices and kind != "text":
        raise ValueError(f"--transformer: expected with --text, got {FLAGS[kind]}; pictures take none")
    if "start" in choices and (kind == "text" or len(choices) > 1):
        raise ValueError("--from: expected with pictures, and without --routing, --size and --backbone, which are "
                         "those of the network it names")  # fmt: skip
    if kind == "text":
        routing = choices.get("routing", "heinsen")
        recipe, why = own_text_recipe(path, choices.get("transformer", ""), words, routing=routing)
    else:
        recipe, why = own_recipe(kind, path, words, **choices)
    warning = memory_warning(recipe, find_device(device))
    for line in (*why, *([f"warning: {warning}"] if warning else [])):
        say(line)
    return recipe


def check_out(out: str | None) -> None:
    """Raises where --out cannot be a folder, before anything is read."""
    if out is None:
        return
    path = Path(out)
    there = next((p for p in (path, *path.parents) if p.exists()), path)
    if not out or not there.is_dir():
        raise ValueError(f"--out: expected a folder for the run, got {f'a file, {there}' if out else 'an empty name'}")


def report(recipe: Recipe, outcome: training.Outcome) -> None:
    """Prints the results, where they are, and what to try next."""
    result, folder = outcome.result, outcome.folder
    claim = f"{recipe.claim} ({recipe.claim.paper})" if recipe.claim.value is not None else ""
    trained = f"{result['epochs']:g} epochs, {result['images']:,} images in {duration(result['wall_s'])}"
    weights = folder / f"{result['weights']}.safetensors"
    rows = {"test": describe(outcome.test), "the paper's": claim, "parameters": f"{result['parameters']:,}",
            "trained": f"{trained} on {result['hardware']}", "weights": str(weights),
            "metrics": str(folder / "metrics.jsonl")}
    rows |= {Path(p).stem: str(folder / p) for p in ("curve.png", "reconstructions.png") if (folder / p).is_file()}
    show_table((), [(key, text) for key, text in rows.items() if text])
    code = f"import flashcaps; print(flashcaps.load({json.dumps(str(folder))}))"
    for line in ("", f"next:  {shlex.join(['flashcaps', 'evaluate', str(folder)])}", "       flashcaps recipes",
                 f"       {shlex.join(['python', '-c', code])}"):
        say(line)


def describe(evaluation: Evaluation) -> str:
    low, high = evaluation.interval
    text = f"error {evaluation.error:.2f} % (95 % interval {low:.2f} to {high:.2f}), "
    text += f"{evaluation.wrong:,} of {evaluation.examples:,}"
    if evaluation.labels:
        every = evaluation.every_label
        text = (f"exact match {evaluation.accuracy:.2f} %, precision {every.precision:.2f} %, recall "
                f"{every.recall:.2f} %, F1 {every.f1:.2f} %; {text}")
    return text


def evaluate(
    run: RunName,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value: data.name=affnist; more runs for --ensemble")
    ] = None,
    weights: Weights = None,
    split: Annotated[str, typer.Option(help="test or validation")] = "test",
    ensemble: Annotated[bool, typer.Option("--ensemble", help="several runs as one: the mean of their scores")] = False,
    routing: Annotated[bool, typer.Option("--routing", help="also measure what routing does, layer by layer")] = False,
    keep: Annotated[Path | None, typer.Option(help="with --ensemble or --routing: folder of results to add to")] = None,
    device: Device = "auto",
    data: DataRoot = None,
    batch: Annotated[int, typer.Option(min=1, help="batch size")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    imports: Imports = None,
) -> None:
    """Print the test error with its 95 % interval and a confusion table; with several labels per image, F1 of each.

    \b
    flashcaps evaluate runs/tiny-0
    flashcaps evaluate runs/capsnet_affnist-0 data.name=translated_mnist
    flashcaps evaluate runs/tiny-0/last.safetensors --json
    flashcaps evaluate demo_dynamic --routing
    flashcaps evaluate runs/tiny-0 runs/tiny-1 runs/tiny-2 --ensemble --keep results
    """
    more, changes = runs_and_overrides(overrides or [])
    if not ensemble and (more or (keep and not routing)):
        word = more[0] if more else "--keep"
        raise ValueError(f"{word}: expected key=value; several runs and --keep go with --ensemble")
    if ensemble and routing:
        raise ValueError("--routing: expected one run, got --ensemble, whose members each route in their own way")
    if keep is not None and (changes or split != "test"):
        raise ValueError("--keep: expected the recipe's own test data, got overrides or --split; leave them out")
    keep_freed_memory()
    runs, chosen = [run, *more], find_device(device)
    model, members, recipe = open_runs(runs, changes, weights, chosen, ensemble)
    sources = open_sources(recipe, data, chosen, None)
    held = {"test": sources.test, "validation": sources.validation}.get(split)
    if held is None:
        raise ValueError(f"--split: expected test, or validation where the recipe holds some out, got {split!r}")
    evaluation = evaluate_as(recipe, model, held, batch)
    if routing:
        measured = measure_routing(model, held, threshold=score_threshold(recipe.loss.kind))
        evaluation = replace(evaluation, routing=measured)
        if not (changes or weights or split != "test"):
            keep_routing(run, model, recipe, evaluation, keep)
    elif keep is not None:
        command = shlex.join(["flashcaps", "evaluate", *(f"runs/{Path(name).name}" for name in runs), "--ensemble"])
        kept = keep_result(ensemble_result(members, evaluation, command, chosen), keep / "runs")
        if not as_json:
            say(kept)
    if as_json:
        typer.echo(json.dumps(evaluation.to_dict()))
    else:
        print_evaluation(evaluation, sources.dataset.class_names)


def open_runs(
    runs: list[str], changes: list[str], weights: str | None, device: torch.device, ensemble: bool
) -> tuple[Any, list[Member], Recipe]:
    """The model, the members if it is an ensemble, and the recipe they were trained by with `changes`."""
    if ensemble:
        several, members = open_ensemble(runs, weights=weights, device=device)
        return several, members, make_recipe(members[0].recipe.to_dict(), changes)
    model: Any = load(runs[0], weights=weights, device=device)
    content = model.config["recipe"]
    if any(word.startswith("data.path=") for word in changes) and "examples" in content["data"].get("options", {}):
        changes = ["data.examples=0", *changes]  # all of them: none was trained on
    return model, [], make_recipe(content, changes)


def print_evaluation(evaluation: Evaluation, names: tuple[str, ...]) -> None:
    """Errors, classes by their names, and what routing did if that was measured."""
    say(describe(evaluation))
    if evaluation.labels:
        say(labels_text(evaluation, names))
    if evaluation.confusion:
        say(confusion_text(evaluation, names))
    if evaluation.routing is not None:
        print_routing(evaluation.routing)


def print_routing(measured: RoutingMeasure) -> None:
    """A table for each capsule layer, a column for each iteration; then how the answers changed."""
    for k, layer in enumerate(measured.layers, 1):
        iterations = [f"iteration {t}" for t in range(1, len(layer.largest) + 1)]
        rows = [("largest coupling, times the number of parents", *(f"{x:.3f}" for x in layer.largest)),
                ("entropy of couplings, 1 where uniform", *(f"{x:.4f}" for x in layer.entropy))]
        if k == len(measured.layers):
            more = (f"{x:.3f}" for x in measured.attracted)
            rows.append(("more votes for a class where it is the answer, times parents", *more))
            rows.append(("error %", *(f"{100 * n / measured.examples:.2f}" for n in measured.wrong)))
        title = f"capsule layer {k}: {layer.routing}, {layer.parents} parents"
        show_table((title, *iterations), rows, right=iterations)
    text = (f"the answer changes between iterations in {measured.changed:,} of {measured.examples:,}: first wrong and "
            f"last right in {measured.righted:,}, first right and last wrong in {measured.spoiled:,}")
    if measured.fixed:
        text = "couplings are the layer's own coefficients, the same for every image: shares are of their sizes"
    say(text)


def runs_and_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Words of the form key=value change the recipe, unless there is such a path; the others are runs."""
    changes = [word for word in words if re.match(r"[\w.]+=", word) and not Path(word).exists()]
    return [word for word in words if word not in changes], changes


def keep_routing(run: str, model: Any, recipe: Recipe, evaluation: Evaluation, keep: Path | None) -> None:
    """Adds what routing did to the result.json of a finished run; with `keep`, a result to KEEP/routing/RUN.json."""
    path, routing = Path(run) / "result.json", {"routing": evaluation.to_dict()["routing"]}
    if path.is_file():
        write_atomic(path, json.dumps(json.loads(path.read_text()) | routing, indent=2) + "\n")
    if keep is not None:
        where = hardware(next(model.parameters()).device)
        command = shlex.join(["flashcaps", "evaluate", run, "--routing"])
        parameters = sum(p.numel() for p in model.parameters())
        result = make_result(recipe, evaluation, where, parameters=parameters, command=command, **routing)
        write_atomic(keep / "routing" / f"{Path(run).name}.json", json.dumps(result, indent=2) + "\n")
