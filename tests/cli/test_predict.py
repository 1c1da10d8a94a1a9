"""`flashcaps predict` prints what the library finds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flashcaps
from flashcaps.cli import app
from flashcaps.deploy import predict as deployed
from flashcaps.training.checkpoint import save_weights
from tests.conftest import Say
from tests.fake_data import save_small
from tests.own_pictures import write_pictures
from tests.small_transformer import Letters


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return save_small(tmp_path / "w.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "in", 3, 28, 28)


def test_json_is_one_object_a_line_and_the_table_says_the_same(
    weights: Path, folder: Path, tmp_path: Path, say: Say
) -> None:
    said = say("predict", weights, folder, "--json", "--top", "2", "--reconstruct", tmp_path / "out").done()
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["0000.png", "0001.png", "0002.png"]
    for row in rows:
        assert row["answer"] == [row["top"][0]["name"]]
        assert len(row["top"]) == 2
        assert Path(row["reconstruction"]).is_file()
        shown = say("predict", weights, row["file"]).out
        assert row["answer"][0] in shown.splitlines()[-1].split()
        assert f"{row['top'][0]['name']} {row['top'][0]['score']:.3f}" in shown


def test_a_damaged_picture_does_not_cost_the_others_their_answers(weights: Path, folder: Path, say: Say) -> None:
    whole = say("predict", weights, folder, "--json").out.splitlines()
    damaged = folder / "disc" / "0001.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    for options in ([], ["--json"]):
        said = say("predict", weights, folder, *options)
        assert said.code == 1
        assert said.err.startswith(f"error: {damaged}: not a whole picture")
        assert said.err.count("\n") == 1
        assert len(said.out.splitlines()) == 3 - len(options)  # the table has a header
    assert said.out.splitlines() == [whole[0], whole[2]]
    alone = say("predict", weights, damaged)
    assert (alone.code, alone.out) == (1, "")


def test_names_on_stdin(weights: Path, folder: Path) -> None:
    names = [str(file) for file in sorted(folder.rglob("*.png"), reverse=True)]
    result = CliRunner().invoke(app, ["predict", str(weights), "-", "--json"], input="\n".join(names))
    assert [json.loads(line)["file"] for line in result.stdout.splitlines()] == names


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Path, say: Say) -> None:
    model, path = flashcaps.create_model("heinsen_sst2", layers=3, width=6), tmp_path / "t.safetensors"
    save_weights(path, model, {"recipe": {"data": {"options": {"class_names": ["no", "yes"]}}}})
    monkeypatch.setattr(deployed, "open_transformer", lambda *_: Letters())
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    rows = [json.loads(line) for line in
            say("predict", path, tmp_path / "lines.txt", "--text", "three", "--json").out.splitlines()]
    assert [row["text"] for row in rows] == ["three", "one", "two"]
    assert all(row["answer"][0] in ("no", "yes") for row in rows)
    assert "three" in say("predict", path, "--text", "three").out
    assert "reads text" in say("predict", path, "--text", "three", "--invert").err
    assert "--text: expected a text, got an empty one" in say("predict", path, "--text", " ").err
    assert "reads pictures" in say("predict", weights, "--text", "three").err
