"""flashcaps checks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from .console import console


def checks(device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N")] = "auto") -> None:
    """Whether everything works here: versions, devices, which kernels run and why no other, each against its reference.

    \b
    flashcaps checks
    flashcaps checks --device cuda
    """
    from ..training import environment as found
    from ..training.distributed import find_device

    chosen = find_device(device)
    say = {"versions": ", ".join(f"{name} {v or 'not here'}" for name, v in found.versions().items())}
    for k, line in enumerate(found.devices()):
        say["devices" if k == 0 else " " * k] = line
    there = found.extras()
    say["extras"] = ", ".join(name for name, here in there.items() if here) or "none"
    missing = [name for name, here in there.items() if not here]
    if missing:
        say["not here"] = f"{', '.join(missing)}: pip install 'flashcaps[{','.join(missing)}]'"
    plain = Table(show_header=False, box=None, pad_edge=False)
    for key, line in say.items():
        plain.add_row(key.strip(), escape(line))  # extras are named in brackets
    console.print(plain)
    console.print(f"\nlayers on {chosen} are computed by", markup=False)
    console.print(active_table(found.active_backends(chosen)))
    console.print("\nlargest difference from the reference, as a share of the largest element", markup=False)
    compared = found.compare_backends(chosen)
    console.print(compared_table(compared))
    if not all(row.ok for row in compared):
        raise RuntimeError("a fast form differs from its reference here; use backend='reference', and report it")


def active_table(rows: list) -> Table:
    table = Table("algorithm", "backend", "why no other", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.algorithm, row.backend, "; ".join(f"{name}: {why}" for name, why in row.others.items()))
    return table


def compared_table(rows: list) -> Table:
    table = Table("algorithm", "backend", "output", "gradient", "", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.algorithm, row.backend, f"{row.output:.1e}", f"{row.gradient:.1e}",
                      "ok" if row.ok else "DIFFERS")  # fmt: skip
    return table
