import os
from pathlib import Path

import pytest

from tests.data.files import write_digits


@pytest.fixture
def digit_root(tmp_path: Path) -> Path:
    """A data root with a small MNIST."""
    write_digits(tmp_path / "mnist")
    return tmp_path


@pytest.fixture
def real_root() -> str:
    """$FLASHCAPS_DATA, for tests marked data."""
    assert "FLASHCAPS_DATA" in os.environ, "tests marked data read the published files under $FLASHCAPS_DATA"
    return os.environ["FLASHCAPS_DATA"]
