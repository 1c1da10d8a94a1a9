"""The console of all commands; wide where there is no terminal, so that tables are not wrapped."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

DATA_ROOT = "default $FLASHCAPS_DATA or ~/.cache/flashcaps"
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def say(text: object) -> None:
    """Print one line as it is."""
    console.print(str(text), markup=False, soft_wrap=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under the names of their columns, if there are any. right: columns of numbers."""
    table = Table(box=None, pad_edge=False, show_header=bool(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
