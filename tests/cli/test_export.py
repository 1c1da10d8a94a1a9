"""`flashcaps export` writes beside the weights, compares on real pictures, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import flashcaps
from flashcaps.checkpoint import save_weights
from flashcaps.cli._export import beside, export
from flashcaps.export import open_exported
from flashcaps.sizing import own_recipe
from tests.own_pictures import write_pictures

app = typer.Typer()
app.command()(export)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_pictures(tmp_path / "shapes", 30, 12, 12)
    recipe, _ = own_recipe("images", str(folder), ["model.decoder=false"])
    model = flashcaps.create_model(recipe.model.name, **recipe.model.overrides)
    save_weights(tmp_path / "run" / "last.safetensors", model, {"recipe": recipe.to_dict()})
    return tmp_path / "run"


def invoke(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)


def test_onnx_and_int8_on_the_test_data(run: Path) -> None:
    out = invoke(run, "--int8").stdout
    assert "on 6 real images" in out
    assert "last.int8.onnx" in out
    assert "error" in out
    scores, _ = open_exported(run / "last.onnx")(torch.rand(5, 3, 12, 12))
    assert scores.shape == (5, 3)


def test_safetensors_on_named_pictures(run: Path) -> None:
    out = invoke(run, "--to", "safetensors", "--inputs", run.parent / "shapes" / "bar").stdout
    assert "0.0e+00 on random, 0.0e+00 on 10 real images" in out
    assert (run / "last-exported.safetensors").is_file()
    assert beside(Path("a/b.safetensors"), ".onnx") == Path("a/b.onnx")
    assert beside(Path("a/b.safetensors.xz"), ".onnx") == Path("a/b.onnx")
    assert beside(Path("a/b.safetensors.xz"), ".safetensors") == Path("a/b-exported.safetensors")


def test_without_data_it_says_so(run: Path) -> None:
    (run.parent / "shapes").rename(run.parent / "elsewhere")
    out = invoke(run, "--to", "safetensors").stdout
    assert "no real inputs: --images: no folder" in out
    with pytest.raises(ValueError, match="--to: expected one of 'onnx'"):
        invoke(run, "--to", "onx")
