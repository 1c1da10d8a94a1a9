"""Every fault in its quick size with the tests, in its full size among the slow ones (make faults): nothing is lost."""

import importlib
from pathlib import Path

import pytest

from tests.faults.child import Row

FAULTS = ("kill", "disk", "nonfinite", "lost_rank", "long_run", "together")


def tried(name: str, folder: Path, full: bool) -> Row:
    row: Row = importlib.import_module(f"tests.faults.{name}").try_all(folder, full)
    print(f"{row.fault}: {row.tried} tried, {len(row.lost)} lost {row.note}")
    return row


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost(name: str, tmp_path: Path) -> None:
    row = tried(name, tmp_path / "trials", False)
    assert row.tried > 0
    assert row.lost == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost_in_many_trials(name: str, tmp_path: Path) -> None:
    assert tried(name, tmp_path / "trials", True).lost == []


def test_a_loss_is_counted() -> None:
    row = Row("something")
    row.count("", "")
    row.count("", "the weights differ")
    assert (row.tried, row.lost) == (2, ["the weights differ"])
