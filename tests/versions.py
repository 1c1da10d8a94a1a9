"""A plugin that keeps the outcome of a run: python -m pytest -p tests.versions

Adds it to results/versions.json, in the place of an earlier run with the same Python and PyTorch; README says what it
runs on by that file (`python -m docs`).
"""

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import torch

from flashcaps.training.checkpoint import write_atomic
from flashcaps.training.results import commit, hardware, versions

FILE = Path(__file__).parents[1] / "results" / "versions.json"
started = time.monotonic()


def key(run: dict[str, Any]) -> list[str]:
    return [run["versions"][name] for name in ("python", "torch")]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out the test that asks for the record of this run, which is not there before its end."""
    of_record = [item for item in items if item.name == "test_what_is_installed_is_what_was_tested"]
    config.hook.pytest_deselected(items=of_record)
    items[:] = [item for item in items if item not in of_record]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    outcomes = {name: len(found) for name in ("passed", "failed", "error", "skipped")
                if (found := terminalreporter.stats.get(name))}  # fmt: skip
    changed = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("USE_")]
    words = [*changed, "python", "-m", "pytest", *terminalreporter.config.invocation_params.args]
    run: dict[str, Any] = {"commit": commit(), "hardware": hardware(torch.device("cpu")), "versions": versions(),
                           "command": shlex.join(words), "outcomes": outcomes,
                           "wall_s": round(time.monotonic() - started, 1)}  # fmt: skip
    earlier = json.loads(FILE.read_text()) if FILE.is_file() else []
    kept = [other for other in earlier if key(other) != key(run)]
    write_atomic(FILE, json.dumps(sorted([*kept, run], key=key), indent=1) + "\n")
