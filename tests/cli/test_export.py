"""`flashcaps export` writes beside the weights, compares on real pictures, and says so."""

from pathlib import Path

import pytest
import torch

from flashcaps.cli.export import beside
from flashcaps.deploy.export import open_exported
from flashcaps.models.shipped import FOLDER
from tests.conftest import Say
from tests.own_pictures import save_own, write_pictures


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_pictures(tmp_path / "shapes", 30, 12, 12)
    return save_own(tmp_path / "run" / "last.safetensors", folder).parent


def test_onnx_and_int8_on_the_test_data(run: Path, say: Say) -> None:
    out = say("export", run, "--int8").out
    assert "on 6 real images" in out
    assert "last.int8.onnx" in out
    assert "error" in out
    scores, _ = open_exported(run / "last.onnx")(torch.rand(5, 3, 12, 12))
    assert scores.shape == (5, 3)


def test_safetensors_on_named_pictures_and_without_data(run: Path, say: Say) -> None:
    out = say("export", run, "--to", "safetensors", "--inputs", run.parent / "shapes" / "bar").out
    assert "0.0e+00 on random, 0.0e+00 on 10 real images" in out
    assert (run / "last-exported.safetensors").is_file()
    assert beside(Path("a/b.safetensors"), ".onnx") == Path("a/b.onnx")
    assert beside(Path("a/b.safetensors.xz"), ".onnx") == Path("a/b.onnx")
    assert beside(Path("a/b.safetensors.xz"), ".safetensors") == Path("a/b-exported.safetensors")
    (run.parent / "shapes").rename(run.parent / "elsewhere")
    assert "no real inputs: --images: no folder" in say("export", run, "--to", "safetensors").out


def test_weights_that_come_along_are_exported_here(here: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    monkeypatch.setenv("FLASHCAPS_DATA", str(here / "none"))
    before = set(FOLDER.iterdir())
    try:
        said = say("export", "demo_dynamic", "--to", "safetensors")
        assert said.out.startswith("demo_dynamic-exported.safetensors: ")
        assert (here / "demo_dynamic-exported.safetensors").is_file()
    finally:
        more = set(FOLDER.iterdir()) - before
        for file in more:
            file.unlink()
    assert not more


def test_where_and_how_exactly(run: Path, say: Say) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.onnx: no such file; export_model or"):
        open_exported(run / "none.onnx")
    for words, message in (
        (("--out", run), f"expected a file to write, got a folder; {run / 'model.onnx'} would be one"),
        (("--out", ""), "expected a file to write, got a folder; model.onnx would be one"),
        (("--tolerance", "-1"), "tolerance: expected a number of at least 0, got -1"),
        (("--tolerance", "nan"), "tolerance: expected a number of at least 0, got nan"),
        (("--to", "safetensors", "--int8"), "--int8: expected with --to onnx, got safetensors"),
    ):
        assert message in say("export", run, *words).err
