"""`import flashcaps` is light: torch, numpy and safetensors, and what those load themselves."""

import json
import subprocess
import sys


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
