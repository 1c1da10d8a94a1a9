"""The guide's algorithm, pasted as it stands, is one that the project would take: lint, types, contract tests."""

import os
import subprocess
import sys
from pathlib import Path

from .test_guides import ROOT, blocks

STRICT = '"flashcaps.routing.*"'  # in pyproject.toml, among the modules whose types are checked strictly
PLUGIN = 'import flashcaps\nfrom median import Median\n\nflashcaps.ROUTING["median"] = Median\n'


def run(folder: Path, *words: str) -> str:
    path = os.pathsep.join(["src", str(folder)])
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": path, "MYPYPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guides_algorithm_passes_lint_types_and_the_contract(tmp_path: Path) -> None:
    file = tmp_path / "median.py"
    file.write_text(blocks("docs/write_routing.md")[0])
    (tmp_path / "register_median.py").write_text(PLUGIN)
    run(tmp_path, "ruff", "check", "--config", "pyproject.toml", str(file))
    config = (ROOT / "pyproject.toml").read_text()
    assert STRICT in config
    (tmp_path / "pyproject.toml").write_text(config.replace(STRICT, f'{STRICT}, "median"'))
    run(tmp_path, "mypy", "--config-file", str(tmp_path / "pyproject.toml"), str(file))  # in the cache of `make types`
    said = run(tmp_path, "pytest", "tests/routing/test_contract.py", "-p", "register_median", "-k", "median", "-v")
    assert " passed" in said
    assert " failed" not in said
