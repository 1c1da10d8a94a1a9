"""The report of tests on a GPU."""

from pathlib import Path

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
