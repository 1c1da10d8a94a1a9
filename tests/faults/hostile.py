"""8. Hostile tensors: the fuzzer over the public surface, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.faults.child import Row

LIMIT_S = 600


def try_all(folder: Path, full: bool) -> Row:
    row = Row(8, "hostile tensors (fuzzing)")
    folder.mkdir(parents=True, exist_ok=True)
    cases, out = 10_000 if full else 100, folder / "fuzz.json"
    command = [sys.executable, "-m", "tests.fuzz", "--cases", str(cases), "--save", str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        row.count(f"no end within {LIMIT_S} s")
        return row
    if not out.is_file():
        row.count(f"exit code {done.returncode}: {done.stderr[-300:]}")
        return row
    found = json.loads(out.read_text())
    row.tried = found["cases"]
    for target, kinds in found["targets"].items():
        row.lost += [f"{target}: unexplained"] * kinds["unexplained"]
    return row
