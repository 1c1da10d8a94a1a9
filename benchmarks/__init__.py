"""Side-by-side measurements; results go to results/bench as JSON with commit, hardware and versions."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from typing import Any

import torch

from flashcaps.training.results import commit, hardware

SEED = 0  # of weights; inputs take the numbers after it


def command_line() -> str:
    """What was typed, as it can be typed again anywhere."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if module is not None and module.name not in ("flashcaps.__main__", "flashcaps"):
        return shlex.join(["python", "-m", module.name.removesuffix(".__main__"), *sys.argv[1:]])
    return shlex.join([os.path.basename(sys.argv[0]).replace("__main__.py", "flashcaps"), *sys.argv[1:]])


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    try:
        import triton
    except ImportError:
        return found
    return {**found, "triton": triton.__version__}


def provenance(device: str = "cpu") -> dict[str, Any]:
    """What a measurement needs to be repeated: hardware, versions, commit, command, seed."""
    return {
        "hardware": hardware(torch.device(device)),
        "versions": versions(),
        "commit": commit(),
        "command": command_line(),
        "seed": SEED,
    }
