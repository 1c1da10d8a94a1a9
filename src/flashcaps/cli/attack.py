import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import AsJson, DataRoot, Device, Imports, RunNames, say, show_table


def attack(
    runs: RunNames,
    epsilon: Annotated[list[float] | None, typer.Option(help="largest change of a pixel (0 to 1); repeatable")] = None,
    steps: Annotated[int, typer.Option(min=1, help="number of PGD steps")] = 20,
    loss: Annotated[str, typer.Option(help="loss that the attack increases: gap, cross_entropy, trained")] = "gap",
    examples: Annotated[int, typer.Option(min=1, help="number of test images, taken evenly from the set")] = 1000,
    seed: Annotated[int, typer.Option(help="seed of PGD's random start")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="batch size")] = 250,
    device: Device = "auto",
    data: DataRoot = None,
    keep: Annotated[Path | None, typer.Option(help="folder of stored results to add to")] = None,
    as_json: AsJson = False,
    imports: Imports = None,
) -> None:
    """Accuracy under FGSM and PGD attacks of increasing size.

    \b
    flashcaps attack runs/tiny-0
    flashcaps attack runs/capsnet_mnist-0 runs/cnn_mnist-0 --examples 10000 --keep results
    flashcaps attack runs/tiny-0 --epsilon 0 --epsilon 0.1 --steps 40 --loss cross_entropy
    flashcaps figures runs/capsnet_mnist-0 adversarial
    """
    from ..analysis import open_run
    from ..analysis.adversarial import Plan, make_record
    from ..analysis.figure import ATTACKS
    from ..training.results import keep as store

    plan = Plan(tuple(epsilon or ()), steps, loss, seed, batch)
    options = [f"--epsilon {e:g}" for e in plan.epsilons] + [f"--steps {steps}", f"--loss {loss}",
                                                            f"--examples {examples}", f"--seed {seed}"]
    for name in runs:
        run = f"runs/{Path(name).name}" if Path(name).exists() else name  # a shipped name
        command = f"flashcaps attack {shlex.quote(run)} {' '.join(options)}"
        record = make_record(open_run(name, data=data, device=device, count=examples), plan, command)
        if keep is not None:
            say(store(record, keep / ATTACKS))
        if as_json:
            typer.echo(json.dumps(record))
        else:
            show(name, record)


def show(name: str, record: dict[str, Any]) -> None:
    accuracy = {(row["attack"], row["epsilon"]): row["accuracy"] for row in record["rows"]}
    flat = f", {record['flat']:.1f} % of gradients are 0" if record["flat"] else ""
    say(f"{name}: accuracy on {record['examples']:,} images, {record['wall_s']:g} s{flat}")
    show_table(("epsilon", "FGSM", "PGD"), [(f"{e:g}", *(f"{accuracy[kind, e]:.2f} %" for kind in ("fgsm", "pgd")))
                                            for e in sorted({e for _, e in accuracy})])
