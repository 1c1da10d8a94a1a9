"""Side-by-side measurements; results go to results/bench as JSON with commit, hardware and versions."""

from __future__ import annotations

import platform
import shlex
import sys
from typing import Any

import torch

from flashcaps.results import commit, hardware


def provenance(device: str = "cpu") -> dict[str, Any]:
    """What a measurement needs to be repeated: hardware, versions, commit, command."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    name = module.name if module else sys.argv[0]
    return {
        "hardware": hardware(torch.device(device)),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "commit": commit(),
        "command": shlex.join(["python", "-m", name, *sys.argv[1:]]),
    }
