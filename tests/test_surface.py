"""A public name, signature or default that changes is announced (tests/surface.txt), and importing them is light."""

import difflib
import json
import subprocess
import sys

from .surface import FILE, describe, surface


def test_the_public_surface_is_what_was_announced() -> None:
    """Meant to change? `python -m tests.surface`, and a line in CHANGELOG.md."""
    before, now = FILE.read_text(encoding="utf-8"), surface()
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "announced", "is", lineterm="", n=0)
    changes = "\n".join(lines)
    assert not changes, f"the public surface changed; `python -m tests.surface` renews tests/surface.txt\n{changes}"


def test_a_changed_default_is_seen() -> None:
    def before(x: int, *, size: int = 3) -> int:
        return x * size

    def after(x: int, *, size: int = 4) -> int:
        return x * size

    assert describe("f", before) == ["f(x: int, *, size: int = 3) -> int"]
    assert describe("f", before) != describe("f", after)


def loaded(statement: str) -> set[str]:
    """Top-level modules of a fresh interpreter after `statement`."""
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_nothing_is_loaded_beyond_torch_numpy_and_safetensors() -> None:
    # What torch loads late, and only when its checkpoints are named, is torch's own.
    base = loaded("import torch, numpy, safetensors, safetensors.torch, torch.distributed, torch.utils.checkpoint")
    assert not loaded("import flashcaps") - base - set(sys.stdlib_module_names) - {"flashcaps"}
    # only the command line loads these
    training = loaded("import flashcaps.training.loop, flashcaps.training.results")
    assert not {"typer", "rich", "matplotlib"} & training
