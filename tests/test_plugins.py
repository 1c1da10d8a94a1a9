"""Algorithms, models, data sets and figures of another package, found by their entry points or by --import."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.analysis import FIGURES
from flashcaps.data import DATA, load_data
from flashcaps.models.registry import MODELS, create_model, list_models
from flashcaps.plugins import Registry
from flashcaps.routing import ROUTING
from tests.conftest import Say

PACKAGE = '''
from dataclasses import dataclass, replace

import torch
from flashcaps.data import Dataset, load_data
from flashcaps.models.registry import MODELS
from flashcaps.routing.dynamic import Dynamic

@dataclass(frozen=True)
class Twice(Dynamic):
    iterations: int = 2

twice_tiny = replace(MODELS["capsnet_tiny"], about="his: a network of his")

def few_digits(root=None, *, count=100):
    whole = load_data("digits")
    some = torch.arange(0, 1000, 1000 // count)
    return replace(whole, name="few_digits", train=whole.train.select(some * 4), test=whole.test.select(some))

def blank(run):
    """Nothing at all."""
'''
ENTRIES = """
[flashcaps.routing]
twice = his_package:Twice
broken = his_package:missing
dynamic = his_package:Twice
[flashcaps.models]
twice_tiny = his_package:twice_tiny
[flashcaps.data]
few_digits = his_package:few_digits
[flashcaps.figures]
blank = his_package:blank
"""
REGISTRIES: tuple[Registry[Any], ...] = (ROUTING, MODELS, DATA, FIGURES)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution of one module, as pip leaves it."""
    before = [(registry, dict(registry)) for registry in REGISTRIES]
    (tmp_path / "his_package.py").write_text(PACKAGE)
    info = tmp_path / "his_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: his-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    for registry in REGISTRIES:
        registry.loaded = False
    yield
    sys.modules.pop("his_package", None)
    for registry, known in before:
        registry.clear()
        registry.update(known)


@pytest.mark.usefixtures("package")
def test_what_a_package_declares_has_a_name_here() -> None:
    assert "his_package" not in sys.modules
    assert flashcaps.DenseCapsules("dynamic", in_capsules=2, in_dim=2, out_capsules=2, out_dim=2)
    assert "his_package" not in sys.modules  # own names load nothing
    with pytest.warns(UserWarning, match="his-package") as warned:
        layer = flashcaps.DenseCapsules("twice", in_capsules=3, in_dim=4, out_capsules=2, out_dim=4)
    left_out, taken = sorted(str(w.message) for w in warned)
    assert left_out.startswith("his-package: flashcaps.routing 'broken' is left out (AttributeError: ")
    assert "\n" not in left_out
    assert taken == "his-package: flashcaps.routing 'dynamic' is left out: there is one of this name already"
    assert layer(torch.randn(5, 3, 4)).pose.shape == (5, 2, 4)
    assert list(ROUTING)[-1] == "twice"
    assert ROUTING["dynamic"].__module__ == "flashcaps.routing.dynamic"
    assert "twice_tiny" in list_models()
    assert create_model("twice_tiny", routing="twice", classes=3).classes == 3
    assert len(load_data("few_digits", count=50).train) == 50
    assert "blank" in FIGURES
    with pytest.raises(ValueError, match=r"routing: expected one of .*'twice', got 'thrice'"):
        flashcaps.DenseCapsules("thrice", in_capsules=3, in_dim=4, out_capsules=2, out_dim=4)


def test_a_module_is_imported_by_name_also_for_the_command_that_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != ""])
    (tmp_path / "her_module.py").write_text(PACKAGE + 'from flashcaps.data import DATA\nDATA["hers"] = few_digits\n')
    words = ["train", "tiny", "data.name=hers", "validation=0", "--import", "her_module", "--dev", "--device", "cpu",
             "--out", "run"]  # fmt: skip
    try:
        assert not say(*words).code
    finally:
        DATA.pop("hers", None)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["data"] == "hers"
    assert (tmp_path / "run" / "resume.txt").read_text().endswith(" --import her_module --resume\n")
    said = say("models", "--import", "no_such_module").err
    assert "error: --import: no_such_module: No module named 'no_such_module'" in said
