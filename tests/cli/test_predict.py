"""`flashcaps predict` prints what the library finds."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import flashcaps
from flashcaps.cli.predict import predict
from flashcaps.deploy import predict as deployed
from flashcaps.training.checkpoint import save_weights
from tests.fake_data import small_recipe
from tests.small_transformer import Letters

app = typer.Typer()
app.command()(predict)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    torch.manual_seed(0)
    recipe = small_recipe()
    model = flashcaps.create_model(recipe.model.name, **recipe.model.overrides)
    save_weights(tmp_path / "w.safetensors", model, {"recipe": recipe.to_dict()})
    return str(tmp_path / "w.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for k in range(3):
        pixels = np.random.default_rng(k).integers(0, 255, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "in" / f"{k}.png")
    return tmp_path / "in"


def test_json_is_one_object_a_line(weights: str, folder: Path, tmp_path: Path) -> None:
    arguments = [weights, str(folder), "--json", "--top", "2", "--reconstruct", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    for row in rows:
        assert row["answer"] == [row["top"][0]["name"]]
        assert len(row["top"]) == 2
        assert Path(row["reconstruction"]).is_file()


def test_the_table_names_files_and_answers(weights: str, folder: Path) -> None:
    rows = CliRunner().invoke(app, [weights, str(folder), "--json"]).stdout.splitlines()
    shown = CliRunner().invoke(app, [weights, str(folder / "1.png")], env={"COLUMNS": "200"}).stdout
    found = json.loads(rows[1])
    assert found["answer"][0] in shown.splitlines()[-1].split()
    assert f"{found['top'][0]['name']} {found['top'][0]['score']:.3f}" in shown


def test_a_damaged_picture_does_not_cost_the_others_their_answers(weights: str, folder: Path) -> None:
    whole = CliRunner().invoke(app, [weights, str(folder), "--json"]).stdout.splitlines()
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:200])
    for options in ([], ["--json"]):
        result = CliRunner().invoke(app, [weights, str(folder), *options], env={"COLUMNS": "200"})
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"error: {folder / '1.png'}: not a whole picture")
        assert len(result.stdout.splitlines()) == 3 - len(options)  # the table has a header
    assert result.stdout.splitlines() == [whole[0], whole[2]]
    alone = CliRunner().invoke(app, [weights, str(folder / "1.png")])
    assert (alone.exit_code, alone.stdout) == (1, "")


def test_names_on_stdin(weights: str, folder: Path) -> None:
    names = f"{folder / '2.png'}\n{folder / '0.png'}\n"
    result = CliRunner().invoke(app, [weights, "-", "--json"], input=names)
    assert [Path(json.loads(line)["file"]).name for line in result.stdout.splitlines()] == ["2.png", "0.png"]


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    model = flashcaps.create_model("heinsen_sst2", layers=3, width=6)
    save_weights(tmp_path / "t.safetensors", model, {"recipe": {"data": {"options": {"class_names": ["no", "yes"]}}}})
    monkeypatch.setattr(deployed, "open_transformer", lambda *_: Letters())
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    told = CliRunner().invoke(app, [str(tmp_path / "t.safetensors"), str(lines), "--text", "three", "--json"])
    assert told.exit_code == 0, told.output
    rows = [json.loads(line) for line in told.output.splitlines()]
    assert [row["text"] for row in rows] == ["three", "one", "two"]
    assert all(row["answer"][0] in ("no", "yes") for row in rows)
    told = CliRunner().invoke(app, [str(tmp_path / "t.safetensors"), "--text", "three"])
    assert "three" in told.output
    told = CliRunner().invoke(app, [str(tmp_path / "t.safetensors"), "--text", "three", "--invert"])
    assert "reads text" in str(told.exception)
    told = CliRunner().invoke(app, [str(tmp_path / "t.safetensors"), "--text", " "])
    assert "--text: expected a text, got an empty one" in str(told.exception)
    told = CliRunner().invoke(app, [weights, "--text", "three"])
    assert "reads pictures" in str(told.exception)
