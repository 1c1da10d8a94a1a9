"""The report of tests on a GPU."""

from pathlib import Path
from typing import Any

import pytest

from .. import on_gpu


def test_a_file_that_cannot_be_imported_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tests would be missing from the report, as if there were none."""
    monkeypatch.setattr(on_gpu, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_alone.py").write_text(f"import not_there  # mark.{'gpu'}\n")
    report = on_gpu.run_all(0, 1.0, [], "gpu")
    assert report["outcomes"] == {"failed": 1}
    assert "not_there" in report["failed"][0]["why"]


@pytest.mark.parametrize(("why", "again"), [("OutOfMemoryError", 1), ("AssertionError", 0)])
def test_a_test_that_found_no_memory_runs_again_alone(why: str, again: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(ids: list[str], processes: int, limit: float) -> list[dict[str, Any]]:
        return [{"test": x, "seconds": 1, "outcome": "failed" if processes > 1 else "passed", "why": why} for x in ids]

    monkeypatch.setattr(on_gpu, "run_shared", run)
    report = on_gpu.run_all(2, 1.0, ["test_warm_up"], "gpu")
    assert report["outcomes"] == {"passed" if again else "failed": 1}
    assert len(report["again"]) == again
