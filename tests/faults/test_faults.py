"""Every fault in its quick size with the tests, in its full size among the slow ones (make faults): nothing is lost."""

import importlib
from pathlib import Path

import pytest

FAULTS = ("kill", "disk", "nonfinite", "lost_rank", "long_run", "together")


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost(name: str, full: bool, tmp_path: Path) -> None:
    fault = importlib.import_module(f"tests.faults.{name}")
    print(f"{fault.__doc__.splitlines()[0]} {fault.try_all(tmp_path / 'trials', full)} tried, none lost")
