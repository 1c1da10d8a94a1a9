"""Wheels are reproducible. What they hold: test_installed.py."""

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


def copied(folder: Path) -> Path:
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.slow
def test_two_builds_are_equal_byte_for_byte(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of the sources, and of a copy with other times and permissions, made in another folder."""
    one, two, base = (tmp_path_factory.mktemp(name) for name in ("one", "two", "wheels"))
    for path in copied(two).rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o640)
    first, second = build(copied(one), base / "1"), build(two, base / "2")
    assert first.name == second.name
    with zipfile.ZipFile(first) as a, zipfile.ZipFile(second) as b:  # says which file, where the bytes would not
        assert [i.filename for i in a.infolist()] == [i.filename for i in b.infolist()]
        for x, y in zip(a.infolist(), b.infolist(), strict=True):
            assert (x.CRC, x.date_time, x.external_attr) == (y.CRC, y.date_time, y.external_attr), x.filename
    assert first.read_bytes() == second.read_bytes()
