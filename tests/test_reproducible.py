"""Wheels are reproducible, typed, and hold what they should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "benchmarks", "pyproject.toml", "README.md", "LICENSE")


def build(source: Path, out: Path) -> Path:
    """The wheel of a source tree, stamped with a fixed time."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True, timeout=300)
    [wheel] = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of the sources, and of a copy with other times and permissions, made in another folder."""
    copy, base = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheels")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        source = ROOT / name
        shutil.copytree(source, copy / name, ignore=ignore) if source.is_dir() else shutil.copy(source, copy / name)
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o640)
    again = tmp_path_factory.mktemp("again")
    for name in SOURCES:
        source = ROOT / name
        shutil.copytree(source, again / name, ignore=ignore) if source.is_dir() else shutil.copy(source, again / name)
    return build(again, base / "1"), build(copy, base / "2")


@pytest.mark.slow
def test_two_builds_are_equal_byte_for_byte(wheels: tuple[Path, Path]) -> None:
    first, second = wheels
    assert first.name == second.name
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as two:  # says which file, where the bytes would not
        assert [i.filename for i in one.infolist()] == [i.filename for i in two.infolist()]
        for a, b in zip(one.infolist(), two.infolist(), strict=True):
            assert (a.CRC, a.date_time, a.external_attr) == (b.CRC, b.date_time, b.external_attr), a.filename
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_a_wheel_has_types_recipes_and_the_licence_and_no_tests(wheels: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
    assert "flashcaps/py.typed" in names
    assert "flashcaps/recipes/tiny.toml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "test" in name.split("/")[0] or "__pycache__" in name]
