"""What a run says of where it ran, and reading results back."""

from pathlib import Path

import pytest

from flashcaps.training.results import commit, duration, read_results


def test_commit_comes_from_the_environment_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHCAPS_COMMIT", "abc123")
    assert commit() == "abc123"
    monkeypatch.delenv("FLASHCAPS_COMMIT")
    monkeypatch.setenv("PATH", "")
    assert commit() == ""


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "capsnet_mnist" / "default-0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"default-0\.json: not JSON"):
        read_results(tmp_path)
