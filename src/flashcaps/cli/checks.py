"""flashcaps checks."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ..routing.checks import install_command
from .console import console, say
from .names import Device


def checks(device: Device = "auto") -> None:
    """Check this installation: versions, devices, the active kernels, and each kernel against its reference.

    \b
    flashcaps checks
    flashcaps checks --device cuda
    """
    from ..training import environment as found
    from ..training.distributed import find_device
    from ..training.results import versions

    chosen, extras = find_device(device), found.extras()
    missing = {name: found.EXTRAS[name] for name, here in extras.items() if not here}
    rows = [("versions", ", ".join(f"{name} {v or 'not installed'}" for name, v in versions().items()))]
    rows += [("" if k else "devices", line) for k, line in enumerate(found.devices())]
    rows += [("extras", ", ".join(name for name, here in extras.items() if here) or "none")]
    rows += [("not installed", f"{', '.join(missing)}: {install_command(**missing)}")] * bool(missing)
    plain = Table(show_header=False, box=None, pad_edge=False)
    for key, line in rows:
        plain.add_row(key, escape(line))  # extras are named in brackets
    console.print(plain)
    say(f"\nbackends of layers on {chosen}")
    console.print(active_table(found.active_backends(chosen)))
    say("\nlargest difference from the reference, as a share of the largest element")
    compared = found.compare_backends(chosen)
    console.print(compared_table(compared))
    if not all(row.ok for row in compared):
        raise RuntimeError("a kernel differs from its reference; use backend='reference', and report it")


def active_table(rows: list) -> Table:
    table = Table("algorithm", "backend", "why not another", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.algorithm, row.backend, "; ".join(f"{name}: {why}" for name, why in row.others.items()))
    return table


def compared_table(rows: list) -> Table:
    table = Table("algorithm", "backend", "output", "gradient", "", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.algorithm, row.backend, f"{row.output:.1e}", f"{row.gradient:.1e}",
                      "ok" if row.ok else "DIFFERS")  # fmt: skip
    return table
