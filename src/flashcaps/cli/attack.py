"""flashcaps attack."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .complete import run_names
from .console import DATA_ROOT, console


def attack(
    runs: Annotated[
        list[str], typer.Argument(help="run folders, weights files or shipped names", autocompletion=run_names)
    ],
    epsilon: Annotated[list[float] | None, typer.Option(help="largest change of a pixel, of 1; give several")] = None,
    steps: Annotated[int, typer.Option(min=1, help="of PGD")] = 20,
    loss: Annotated[str, typer.Option(help="what is climbed: gap, cross_entropy, trained")] = "gap",
    examples: Annotated[int, typer.Option(min=1, help="test images, evenly over the set")] = 1000,
    seed: Annotated[int, typer.Option(help="of PGD's random start")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="images at once")] = 250,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N")] = "auto",
    data: Annotated[str | None, typer.Option(help=f"where data sets lie ({DATA_ROOT})")] = None,
    keep: Annotated[Path | None, typer.Option(help="folder of measured results to add each to: results")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line")] = False,
) -> None:
    """Accuracy under FGSM and PGD: by how little can pictures be changed so that a model fails?

    \b
    flashcaps attack runs/tiny-0
    flashcaps attack runs/capsnet_mnist-0 runs/cnn_mnist-0 --examples 10000 --keep results
    flashcaps attack runs/tiny-0 --epsilon 0 --epsilon 0.1 --steps 40 --loss cross_entropy
    flashcaps figures runs/capsnet_mnist-0 adversarial
    """
    from ..analysis import open_run
    from ..analysis.adversarial import Plan, keep_record, make_record

    plan = Plan(tuple(epsilon or ()), steps, loss, seed, batch)
    options = [f"--epsilon {e:g}" for e in plan.epsilons] + [f"--steps {steps}", f"--loss {loss}",
                                                            f"--examples {examples}", f"--seed {seed}"]
    for name in runs:
        place = f"runs/{Path(name).name}" if Path(name).exists() else name  # which is a shipped one's
        command = f"flashcaps attack {shlex.quote(place)} {' '.join(options)}"
        record = make_record(open_run(name, data=data, device=device, count=examples), plan, command)
        if keep is not None:
            console.print(str(keep_record(record, keep)), markup=False, soft_wrap=True)
        if as_json:
            typer.echo(json.dumps(record))
        else:
            show(name, record)


def show(name: str, record: dict[str, Any]) -> None:
    accuracy = {(row["attack"], row["epsilon"]): row["accuracy"] for row in record["rows"]}
    table = Table("epsilon", "FGSM", "PGD", box=None, pad_edge=False)
    for e in sorted({e for _, e in accuracy}):
        table.add_row(f"{e:g}", *(f"{accuracy[kind, e]:.2f} %" for kind in ("fgsm", "pgd")))
    flat = f", {record['flat']:.1f} % of gradients are 0" if record["flat"] else ""
    console.print(f"{name}: accuracy on {record['examples']:,} images, {record['wall_s']:g} s{flat}", markup=False,
                  soft_wrap=True)  # fmt: skip
    console.print(table)
