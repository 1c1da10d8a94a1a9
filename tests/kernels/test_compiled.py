"""Kernels are code that Triton compiles for a CUDA device, whether one is there or not."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_kernel_passes_the_compilers_front_end() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "forms of" in done.stdout
