"""`flashcaps export` writes beside the weights, compares on real pictures, and says so."""

from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import flashcaps
from flashcaps.cli.export import beside, export
from flashcaps.deploy.export import open_exported
from flashcaps.models.shipped import FOLDER
from flashcaps.training.autosize import own_recipe
from flashcaps.training.checkpoint import save_weights
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
    with pytest.raises(ValueError, match="--int8: expected with --to onnx, got safetensors"):
        invoke(run, "--to", "safetensors", "--int8")


def test_weights_that_come_along_are_exported_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHCAPS_DATA", str(tmp_path / "none"))
    before = set(FOLDER.iterdir())
    try:
        assert invoke("demo_dynamic", "--to", "safetensors").stdout.startswith("demo_dynamic-exported.safetensors: ")
        assert (tmp_path / "demo_dynamic-exported.safetensors").is_file()
    finally:
        more = set(FOLDER.iterdir()) - before
        for file in more:
            file.unlink()
    assert not more


def test_where_and_how_exactly(run: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.onnx: no such file; export_model or"):
        open_exported(run / "none.onnx")
    for out, meant in ((run, run / "model.onnx"), ("", "model.onnx")):
        with pytest.raises(ValueError, match=f"expected a file to write, got a folder; {meant} would be one"):
            invoke(run, "--out", out)
    for tolerance in ("-1", "nan"):
        with pytest.raises(ValueError, match=f"tolerance: expected a number of at least 0, got {tolerance}"):
            invoke(run, "--tolerance", tolerance)
