"""Files of a run: whole or not at all, checked on the way back."""

from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.models import create_model, shipped
from flashcaps.models.shipped import shipped_files
from flashcaps.training.checkpoint import (
    find_weights,
    load,
    load_state,
    save_state,
    save_weights,
    write_atomic,
)

OVERRIDES: dict[str, Any] = {"backbone": {"channels": 4}, "primary": {"types": 2}, "decoder": [16]}


@pytest.fixture
def model() -> Any:
    torch.manual_seed(1)
    return create_model("capsnet_tiny", **OVERRIDES).eval()


def test_a_file_builds_its_model_again(tmp_path: Path, model: Any) -> None:
    save_weights(tmp_path / "last.safetensors", model, {"step": 7})
    again: Any = load(tmp_path / "last.safetensors")
    images = torch.rand(3, 1, 28, 28)
    assert torch.equal(again(images).scores, model(images).scores)
    assert not again.training
    assert again.config["step"] == 7
    assert (again.name, again.overrides) == (model.name, model.overrides)


def test_a_folder_gives_the_weights_it_was_tested_with(tmp_path: Path, model: Any) -> None:
    for which in ("last", "ema", "best"):
        save_weights(tmp_path / f"{which}.safetensors", model, {"which": which})
    assert load(tmp_path).config["which"] == "ema"
    (tmp_path / "result.json").write_text(json.dumps({"weights": "best"}))
    assert load(tmp_path).config["which"] == "best"
    assert load(tmp_path, weights="last").config["which"] == "last"


def test_shipped_names_are_found(tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    save_weights(tmp_path / "tiny.safetensors", model, {})
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert load("tiny").name == "capsnet_tiny"
    with pytest.raises(FileNotFoundError, match=r"neither a run folder.*did you mean tiny"):
        load("tinny")


@pytest.mark.parametrize("endings", [("",), (".xz",), (".xz", "")])
def test_shipped_names_are_found_in_either_form(
    tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch, endings: tuple[str, ...]
) -> None:
    for ending in endings:
        save_weights(tmp_path / f"tiny.safetensors{ending}", model, {"ending": ending})
        (tmp_path / f".tiny.safetensors{ending}.part").write_bytes(b"")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert list(shipped_files()) == ["tiny"]
    assert load("tiny").config["ending"] == endings[-1]


def test_wrong_files_are_named(tmp_path: Path, model: Any) -> None:
    with pytest.raises(FileNotFoundError, match="no ema, last or best"):
        find_weights(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no best\.safetensors"):
        find_weights(tmp_path, "best")
    path = tmp_path / "last.safetensors"
    save_weights(path, model, {})
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load(path)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="without its config"):
        load(path)
    with torch.no_grad():
        model.decoder.layers[0].bias[3] = float("nan")
    save_weights(path, model, {})
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.bias: expected finite weights, got 1"):
        load(path)


def test_writing_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    write_atomic(path, "old")

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"


def test_two_states_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save_state(tmp_path, {"at": step, "x": torch.full((3,), float(step))}, step)
    assert sorted(p.name[:14] for p in tmp_path.glob("state-*")) == ["state-00000020", "state-00000030"]
    assert load_state(tmp_path)["at"] == 30


@pytest.mark.parametrize("damage", ["truncated", "changed", "gone"])
def test_a_damaged_state_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    for step in (10, 20):
        save_state(tmp_path, {"at": step}, step)
    (path,) = tmp_path.glob("state-00000020-*.pt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if damage == "truncated" else content)
    with pytest.warns(UserWarning, match=r"state-00000020-\w+\.pt is damaged or gone"):
        assert load_state(tmp_path)["at"] == 10
    save_state(tmp_path, {"at": 30}, 30)  # keeps the good one beside it, not the damaged one
    next(tmp_path.glob("state-00000030-*.pt")).write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged or gone"):
        assert load_state(tmp_path)["at"] == 10


@pytest.mark.parametrize("text", ["", "[", "{}", "[{}]", '[{"file": "../x", "step": 1, "sha256": "0"}]', "[1, 2]"])
def test_states_are_found_without_their_manifest(tmp_path: Path, text: str) -> None:
    for step in (10, 20):
        save_state(tmp_path, {"at": step}, step)
    (tmp_path / "states.json").write_text(text)
    with pytest.warns(UserWarning, match=r"states\.json is damaged"):
        assert load_state(tmp_path)["at"] == 20
    with pytest.warns(UserWarning, match=r"states\.json is damaged"):
        save_state(tmp_path, {"at": 30}, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_state(tmp_path)["at"] == 30


def test_every_flipped_bit_of_weights_is_noticed(tmp_path: Path, model: Any) -> None:
    path = tmp_path / "last.safetensors"
    save_weights(path, model, {})
    whole = path.read_bytes()
    for place in range(0, len(whole), len(whole) // 60):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"last\.safetensors: .*(damaged|whole|config|finite)"):
            load(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_with_path_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: Any) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"config\.json: no room for 3 bytes .* bytes free there"):
        write_atomic(tmp_path / "config.json", "new")
    assert list(tmp_path.iterdir()) == []


def test_no_state_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no whole state"):
        load_state(tmp_path)


def test_a_state_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    save_state(tmp_path, {"at": 1, "x": Evil()}, 1)
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        load_state(tmp_path)
