"""`flashcaps checks` says what is here, what runs, and why nothing else does."""

import tomllib
from pathlib import Path

import pytest
import torch

from flashcaps.routing import ROUTING
from flashcaps.training import environment as checks
from flashcaps.training.results import versions
from tests.conftest import Say


def test_versions_devices_extras_and_every_algorithm(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(checks.EXTRAS) <= set(project["optional-dependencies"])
    assert checks.extras()["plots"]
    monkeypatch.setattr(checks, "extras", lambda: {"plots": True, "timm": False, "text": False})
    said = say("checks", "--device", "cpu").done()
    assert f"torch {torch.__version__}" in said.out
    assert "cpu: " in said.out
    assert "-m pip install 'transformers" in said.out.replace("\n", "")
    assert "kernels run on CUDA devices" in said.out
    active, compared = (text.split() for text in said.out.split("\nlargest difference from the reference"))
    assert all(name in active and name in compared for name in ROUTING)
    assert versions()["torch"] == torch.__version__


def test_a_difference_fails(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [checks.Comparison("dynamic", "matrix", float("nan"), 0.0)]
    monkeypatch.setattr(checks, "compare_backends", lambda *_: bad)
    said = say("checks", "--device", "cpu")
    assert said.code == 1
    assert "DIFFERS" in said.out


def test_what_runs_on_a_cpu_and_why_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.algorithm: row for row in checks.active_backends("cpu")}
    assert set(rows) == set(ROUTING)
    assert {row.backend for row in rows.values()} == {"matrix"}
    assert {row.others["triton"] for row in rows.values()} == {"kernels run on CUDA devices, and this is cpu"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert checks.why_not("em", "triton", "cpu") == "kernels run on CUDA devices, and this is cpu"
    assert checks.why_not("em", "matrix", "cuda") == "slower here; by name it runs"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert checks.why_not("em", "triton", "cpu") == "'triton' needs a CUDA device, and there is none"


def test_a_cuda_device_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        name, total_memory, major, minor = "Some GPU", 80 * 2**30, 9, 0

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda k: Card)
    assert checks.devices()[1].startswith("cuda:0: Some GPU, 80.0 GiB, capability 9.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert checks.devices()[1].startswith("no CUDA device: ")
