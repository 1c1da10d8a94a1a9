"""The console of all commands; wide where there is no terminal, so that tables are not wrapped."""

from __future__ import annotations

import sys

from rich.console import Console

DATA_ROOT = "default $FLASHCAPS_DATA or ~/.cache/flashcaps"
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def say(text: object) -> None:
    """Print one line as it is."""
    console.print(str(text), markup=False, soft_wrap=True)
