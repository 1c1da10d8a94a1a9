import os
from pathlib import Path
from typing import Any

import pytest

from flashcaps.data import Dataset, load_data
from tests.data.files import write_digits

TOYS: dict[str, Any] = {"seed": 3, "size": 16, "azimuths": [0, 5], "elevations": [0, 8], "lightings": [1, 3]}


@pytest.fixture
def digit_root(tmp_path: Path) -> Path:
    """A data root with a small MNIST."""
    write_digits(tmp_path / "mnist")
    return tmp_path


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the toys of `TOYS`, rendered once."""
    root: Path = tmp_path_factory.mktemp("toys")
    load_data("synthetic_norb", root, **TOYS)
    return root


@pytest.fixture
def toys(toy_root: Path) -> Dataset:
    return load_data("synthetic_norb", toy_root, **TOYS)


@pytest.fixture
def real_root() -> str:
    """$FLASHCAPS_DATA, for tests marked data."""
    assert "FLASHCAPS_DATA" in os.environ, "tests marked data read the published files under $FLASHCAPS_DATA"
    return os.environ["FLASHCAPS_DATA"]
