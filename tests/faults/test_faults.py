"""Every fault in its quick size with the tests, in its full size among the slow ones: nothing is ever lost."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.faults.__main__ import FAULTS, line, main
from tests.faults.child import Row


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost(name: str, tmp_path: Path) -> None:
    row = importlib.import_module(f"tests.faults.{name}").try_all(tmp_path / "trials", False)
    assert row.tried > 0
    assert row.lost == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost_in_many_trials(name: str, tmp_path: Path) -> None:
    row = importlib.import_module(f"tests.faults.{name}").try_all(tmp_path / "trials", True)
    assert row.lost == []


def test_a_loss_is_counted_and_shown() -> None:
    row = Row("something")
    row.count("", "")
    row.count("", "the weights differ")
    assert (row.tried, row.survived, row.lost) == (2, 1, ["the weights differ"])
    assert line(row, 61.0).split() == ["something", "2", "1", "1", "1", "min", "01", "s"]


def test_the_command_ends_with_1_when_something_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lossy(folder: Path, full: bool) -> Row:
        return Row("kill -9", tried=3, lost=["a file was written"])

    monkeypatch.setattr("tests.faults.kill.try_all", lossy)
    assert main(["kill", "--quick", "--save", str(tmp_path / "faults.json")]) == 1
    assert "lost: a file was written" in capsys.readouterr().out
    assert '"survived": 2' in (tmp_path / "faults.json").read_text()
