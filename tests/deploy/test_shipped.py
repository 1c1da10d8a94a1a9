"""Weights that come along: made by one command, found by name, as good as their cards say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.deploy import shipped
from flashcaps.training import checkpoint
from flashcaps.training.checkpoint import decompress, read_weights, shipped_files
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.recipe import read_recipe
from tests.fake_data import small_recipe, write_idx

LIMIT = 6_000_000  # bytes of the models the explainer needs, together
ALL = 24_000_000  # bytes of all that come along


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run on made-up digits, and where those lie."""
    folder = tmp_path_factory.mktemp("run")
    data = str(write_idx(folder))
    train(small_recipe("train.epochs=1"), RunOptions(device="cpu", out=str(folder / "small"), data=data))
    return folder / "small", data


@pytest.fixture
def made(run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = shipped.ship(run[0], "small", data=run[1], folder=tmp_path)
    monkeypatch.setattr(checkpoint, "_shipped", lambda: [path])
    return path


def test_a_run_becomes_a_name(made: Path, run: tuple[Path, str]) -> None:
    model: Any = flashcaps.load("small")
    before: Any = flashcaps.load(run[0])
    for (name, x), y in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert x.dtype == y.dtype, name
        assert torch.equal(x, y.to(torch.float16).to(y.dtype) if y.is_floating_point() else y), name
    assert {x.dtype for x in read_weights(made)[0].values()} <= {torch.float16, torch.int64}


def test_the_card_is_made_of_the_result(made: Path, run: tuple[Path, str]) -> None:
    result = json.loads((run[0] / "result.json").read_text())
    stored = flashcaps.load("small").config["result"]["stored"]  # type: ignore[union-attr,index]
    card = made.with_name("small.md").read_text()
    low, high = result["interval"]
    for word in (f"| {result['value']:.2f} % | {low:.2f} to {high:.2f} % |", f"Seed {result['seed']}", "`small`",
                 f"commit {result['commit'] or 'unknown'}", f"torch {result['versions']['torch']}", "Data: mnist",
                 f"(float16): test error {stored['value']:.2f} %", 'flashcaps.load("small")'):  # fmt: skip
        assert word in card
    assert str(run[0].parent) not in card


def test_no_folder_of_the_machine_is_in_the_file(made: Path, run: tuple[Path, str]) -> None:
    config = json.dumps(flashcaps.load("small").config)  # type: ignore[union-attr]
    assert str(run[0].parent) not in config
    assert shipped.plain_command("flashcaps train x --out /a/b --data c seed=1") == "flashcaps train x seed=1"


def test_the_same_run_gives_the_same_bytes(made: Path, run: tuple[Path, str], tmp_path: Path) -> None:
    again = shipped.ship(run[0], "small", data=run[1], folder=tmp_path / "again")
    assert again.read_bytes() == made.read_bytes()


def test_bfloat16_is_for_what_float16_cannot_hold(run: tuple[Path, str], tmp_path: Path) -> None:
    model: Any = flashcaps.load(run[0])
    large = tmp_path / "large"
    with torch.no_grad():
        model.decoder.layers[0].bias[0] = 1e6
    checkpoint.save_weights(large / "ema.safetensors", model, {"recipe": model.config["recipe"]})
    (large / "result.json").write_text((run[0] / "result.json").read_text())
    with pytest.raises(ValueError, match=r"decoder.layers.0.bias does not fit into float16; bfloat16"):
        shipped.ship(large, "large", data=run[1], folder=tmp_path)
    shipped.ship(large, "large", data=run[1], dtype="bfloat16", folder=tmp_path)
    assert "(bfloat16)" in (tmp_path / "large.md").read_text()


def test_the_smaller_form_is_stored_alone(
    run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(worth: float) -> tuple[Path, str]:
        monkeypatch.setattr(shipped, "WORTH", worth)
        path = shipped.ship(run[0], "small", data=run[1], dtype="bfloat16", folder=tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["small.md", path.name]
        return path, (tmp_path / "small.md").read_text()

    small, card = made(shipped.WORTH)
    raw, size = decompress(small), small.stat().st_size
    assert small.name == "small.safetensors.xz"
    assert size < 0.75 * len(raw)
    assert f"File: `small.safetensors.xz`, {size:,} bytes ({len(raw):,} unpacked)." in card
    plain, card = made(0.1)
    assert plain.name == "small.safetensors"
    assert plain.read_bytes() == raw
    assert f"File: `small.safetensors`, {len(raw):,} bytes." in card
    assert made(0.9)[0] == small


def test_errors_name_what_is_wrong(run: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype: expected one of float16, bfloat16"):
        shipped.ship(run[0], "small", dtype="int8", folder=tmp_path)
    with pytest.raises(ValueError, match="name: expected letters, digits and _"):
        shipped.ship(run[0], "../small", folder=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no result.json in .*only a finished run has one"):
        shipped.ship(tmp_path, "small", folder=tmp_path)
    other = tmp_path / "other"
    checkpoint.save_weights(other / "ema.safetensors", flashcaps.load(run[0]), flashcaps.load(run[0]).config)  # type: ignore[arg-type]
    result = json.loads((run[0] / "result.json").read_text()) | {"recipe": "tiny"}
    (other / "result.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="run: its weights are of small, its result of tiny"):
        shipped.ship(other, "small", folder=tmp_path)


def test_the_command(run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(shipped, "ship", lambda *a, **k: shipped_to(tmp_path, a, k))
    monkeypatch.setattr(sys, "argv", ["shipped", str(run[0]), "small", "--data", run[1], "--dtype", "bfloat16"])
    shipped.main()
    assert "small.safetensors: 3 bytes" in capsys.readouterr().out


def shipped_to(folder: Path, given: tuple[Any, ...], options: dict[str, Any]) -> Path:
    assert given[1] == "small"
    assert options["dtype"] == "bfloat16"
    (folder / "small.safetensors").write_bytes(b"abc")
    return folder / "small.safetensors"


@pytest.mark.parametrize("name", shipped.DEMO)
def test_the_explainers_models_come_along(name: str) -> None:
    model: Any = flashcaps.load(name)
    config, recipe = model.config, read_recipe(name)
    assert config["recipe"]["name"] == name
    assert recipe.model.name == model.name
    assert json.loads(json.dumps(recipe.model.overrides)) == model.overrides
    assert model.decoder is not None
    result = config["result"]
    assert result["examples"] == result["stored"]["examples"] == 10_000
    assert result["commit"]
    goal = 15 if name == "demo_pairs" else 1
    assert result["stored"]["interval"][1] < goal
    card = (shipped.FOLDER / f"{name}.md").read_text()
    assert f"{result['value']:.2f} %" in card
    assert f"{result['stored']['value']:.2f} %" in card
    assert model(torch.rand(2, *model.image)).scores.isfinite().all()


def test_they_are_small_together() -> None:
    files = shipped_files()
    assert set(shipped.DEMO) <= set(shipped.shipped_names()) == set(files)
    assert sum(files[name].stat().st_size for name in shipped.DEMO) <= LIMIT
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) < ALL


@pytest.mark.parametrize("name", shipped.shipped_names())
def test_cards_name_their_files(name: str) -> None:
    path = shipped_files()[name]
    assert sorted(p.name for p in shipped.FOLDER.glob(f"{name}.*")) == sorted([f"{name}.md", path.name])
    assert f"File: `{path.name}`, {path.stat().st_size:,} bytes" in (shipped.FOLDER / f"{name}.md").read_text()
