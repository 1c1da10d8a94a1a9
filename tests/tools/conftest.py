from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder of results with the tables of the test's module, and no runs."""
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "tables.toml").write_text(request.module.TABLES)
    return folder
