"""The one console; wide where no terminal says how wide it is, so that tables keep their words."""

from __future__ import annotations

import sys

from rich.console import Console

DATA_ROOT = "default $FLASHCAPS_DATA or ~/.cache/flashcaps"
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
