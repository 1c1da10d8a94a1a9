"""Weights of a run, published by one command: small, found by name, with a card of measured numbers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.models import shipped
from flashcaps.models.stored import decompress, read_weights
from flashcaps.training import checkpoint
from flashcaps.training.loop import RunOptions, train
from tests.fake_data import small_recipe, write_idx
from tools import publish


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run on made-up digits, and where those lie."""
    folder = tmp_path_factory.mktemp("run")
    data = str(write_idx(folder))
    train(small_recipe("train.epochs=1"), RunOptions(device="cpu", out=str(folder / "small"), data=data))
    return folder / "small", data


@pytest.fixture
def made(run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = publish.publish(run[0], "small", data=run[1], folder=tmp_path)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    return path


def test_a_run_becomes_a_name_and_the_same_bytes_again(made: Path, run: tuple[Path, str], tmp_path: Path) -> None:
    model: Any = flashcaps.load("small")
    before: Any = flashcaps.load(run[0])
    for (name, x), y in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert x.dtype == y.dtype, name
        assert torch.equal(x, y.to(torch.float16).to(y.dtype) if y.is_floating_point() else y), name
    assert {x.dtype for x in read_weights(made)[0].values()} <= {torch.float16, torch.int64}
    again = publish.publish(run[0], "small", data=run[1], folder=tmp_path / "again")
    assert again.read_bytes() == made.read_bytes()


def test_the_card_is_made_of_the_result(made: Path, run: tuple[Path, str]) -> None:
    result = json.loads((run[0] / "result.json").read_text())
    stored = flashcaps.load("small").config["result"]["stored"]  # type: ignore[union-attr,index]
    card = made.with_name("small.md").read_text()
    low, high = result["interval"]
    for word in (f"| {result['value']:.2f} % | {low:.2f} to {high:.2f} % |", f"Seed {result['seed']}", "`small`",
                 f"commit {result['commit'] or 'unknown'}", f"torch {result['versions']['torch']}", "Data: mnist",
                 f"(float16): test error {stored['value']:.2f} %", 'flashcaps.load("small")'):  # fmt: skip
        assert word in card
    assert str(run[0].parent) not in card + json.dumps(flashcaps.load("small").config)  # no folder of the machine


def test_bfloat16_is_for_what_float16_cannot_hold(run: tuple[Path, str], tmp_path: Path) -> None:
    model: Any = flashcaps.load(run[0])
    large = tmp_path / "large"
    with torch.no_grad():
        model.decoder.layers[0].bias[0] = 1e6
    checkpoint.save_weights(large / "ema.safetensors", model, {"recipe": model.config["recipe"]})
    (large / "result.json").write_text((run[0] / "result.json").read_text())
    with pytest.raises(ValueError, match=r"decoder.layers.0.bias does not fit into float16; bfloat16"):
        publish.publish(large, "large", data=run[1], folder=tmp_path)
    publish.publish(large, "large", data=run[1], dtype="bfloat16", folder=tmp_path)
    assert "(bfloat16)" in (tmp_path / "large.md").read_text()


def test_the_smaller_form_is_stored_alone(
    run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(worth: float) -> tuple[Path, str]:
        monkeypatch.setattr(publish, "WORTH", worth)
        path = publish.publish(run[0], "small", data=run[1], dtype="bfloat16", folder=tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["small.md", path.name]
        return path, (tmp_path / "small.md").read_text()

    small, card = made(publish.WORTH)
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
        publish.publish(run[0], "small", dtype="int8", folder=tmp_path)
    with pytest.raises(ValueError, match="name: expected letters, digits and _"):
        publish.publish(run[0], "../small", folder=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no result.json in .*only a finished run has one"):
        publish.publish(tmp_path, "small", folder=tmp_path)
    other = tmp_path / "other"
    checkpoint.save_weights(other / "ema.safetensors", flashcaps.load(run[0]), flashcaps.load(run[0]).config)  # type: ignore[arg-type]
    result = json.loads((run[0] / "result.json").read_text()) | {"recipe": "tiny"}
    (other / "result.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="run: its weights are of small, its result of tiny"):
        publish.publish(other, "small", folder=tmp_path)


def test_the_command(run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    given, made = publish.publish, []
    monkeypatch.setattr(publish, "publish", lambda *a, **k: made.append(given(*a, **k, folder=tmp_path)) or made[0])
    monkeypatch.setattr(sys, "argv", ["publish", str(run[0]), "small", "--data", run[1], "--dtype", "bfloat16"])
    publish.main()
    assert f"{made[0]}: {made[0].stat().st_size:,} bytes" in capsys.readouterr().out
    assert {x.dtype for x in read_weights(made[0])[0].values()} <= {torch.bfloat16, torch.int64}
