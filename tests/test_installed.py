"""A wheel is reproducible and, installed where the sources are not, does what the sources do."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from flashcaps.data import load_data
from tools.release_check import clean

ROOT = Path(__file__).parent.parent
SOURCES = ("src", "benchmarks", "pyproject.toml", "README.md", "LICENSE")
pytestmark = pytest.mark.slow


def build(source: Path, out: Path) -> Path:
    """The wheel of a source tree, stamped with a fixed time."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True, timeout=300)
    [wheel] = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def test_two_builds_are_equal_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    """Of the sources, and of a copy with other times and permissions, made in another folder."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o640)
    second = build(tmp_path, tmp_path / "wheels")
    assert wheel.name == second.name
    with zipfile.ZipFile(wheel) as a, zipfile.ZipFile(second) as b:  # says which file, where the bytes would not
        assert [i.filename for i in a.infolist()] == [i.filename for i in b.infolist()]
        for x, y in zip(a.infolist(), b.infolist(), strict=True):
            assert (x.CRC, x.date_time, x.external_attr) == (y.CRC, y.date_time, y.external_attr), x.filename
    assert wheel.read_bytes() == second.read_bytes()


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment of its own: the wheel, and beside it what it depends on, as this one has it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder


def say(place: Path, *words: str) -> str:
    """A command of the wheel's, in its folder; what it printed."""
    done = subprocess.run([place / "env" / "bin" / "flashcaps", *words], cwd=place, env=clean(), text=True,
                          capture_output=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_what_is_not_python(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "flashcaps/recipes/tiny.toml" in names
    assert "flashcaps/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.split("/")[0] in ("tests", "docs", "tools")]


def test_the_sources_are_not_what_runs(place: Path) -> None:
    code = "import flashcaps, importlib.metadata as m; print(flashcaps.__file__); print(m.version('flashcaps'))"
    done = subprocess.run([place / "env" / "bin" / "python", "-c", code], cwd=place, env=clean(), text=True,
                          capture_output=True, check=True)  # fmt: skip
    file, version = done.stdout.split()
    assert Path(file).is_relative_to(place)
    assert version


def test_checks_train_predict(place: Path) -> None:
    assert "ok" in say(place, "checks", "--device", "cpu")
    begun = time.monotonic()
    said = say(place, "train", "tiny", "--dev", "--device", "cpu")
    print(f"train --dev took {time.monotonic() - begun:.0f} s")
    run = place / "runs" / "dev-tiny-0"
    assert str(Path("runs") / "dev-tiny-0") in said
    assert {"config.json", "metrics.jsonl", "curve.csv", "curve.png", "last.safetensors", "result.json"} <= {
        path.name for path in run.iterdir()
    }
    digit = load_data("digits").test.images[0, 0]
    Image.fromarray(digit.numpy().astype("uint8")).save(place / "digit.png")
    found = json.loads(say(place, "predict", "runs/dev-tiny-0", "digit.png", "--json"))
    assert found["file"] == "digit.png"
    assert len(found["top"]) == 3
    assert torch.isfinite(torch.tensor([score["score"] for score in found["top"]])).all()


@pytest.fixture
def page(place: Path) -> Iterator[str]:
    """The address of the explainer, served by the wheel on any free port."""
    command = [place / "env" / "bin" / "flashcaps", "demo", "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, cwd=place, env=clean() | {"PYTHONUNBUFFERED": "1"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    try:
        said = ""
        while server.poll() is None:
            assert server.stdout is not None
            said += server.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", said)
            if address:
                yield address.group()
                return
        raise AssertionError(f"flashcaps demo ended: {said}")
    finally:
        server.terminate()
        server.wait(30)


def test_demo(place: Path, page: str) -> None:
    assert "flashcaps demo" in say(place, "demo", "--help")
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"{page}/models/index.json", timeout=10) as answer:
                assert answer.status == 200
                break
        except OSError:
            time.sleep(0.3)
    else:
        raise AssertionError("no answer from /health")
    with urllib.request.urlopen(f"{page}/", timeout=10) as answer:
        assert b"<html" in answer.read().lower()
