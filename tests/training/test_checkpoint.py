"""Files of a run: written whole or not at all, compressed or not, checked when they are read."""

from __future__ import annotations

import errno
import json
import lzma
import os
import struct
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.cli import main
from flashcaps.models import create_model, shipped
from flashcaps.models.shipped import shipped_files
from flashcaps.training import checkpoint
from flashcaps.training.checkpoint import (
    compress,
    decompress,
    find_weights,
    is_compressed,
    load,
    load_state,
    read_weights,
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
    with pytest.raises(FileNotFoundError, match=r"neither a run folder.*did you mean 'tiny'"):
        load("tinny")


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


def test_a_state_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    save_state(tmp_path, {"at": 1, "x": Evil()}, 1)
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        load_state(tmp_path)


NAMED = r"^\S*small\.safetensors\.xz: [^\n]*$"  # one line that begins with the file


@pytest.fixture(scope="module")
def half_model() -> Any:
    torch.manual_seed(1)
    made = create_model("capsnet_tiny", backbone={"channels": 4}, primary={"types": 2}, decoder=[16])
    return made.to(torch.bfloat16).eval()


@pytest.fixture
def path(tmp_path: Path, half_model: Any) -> Path:
    save_weights(tmp_path / "small.safetensors.xz", half_model, {"step": 7})
    return tmp_path / "small.safetensors.xz"


def refused(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=NAMED) as told:
        flashcaps.load(path)
    return str(told.value)


def test_the_same_bits_come_back(path: Path, half_model: Any) -> None:
    plain = path.with_name("small.safetensors")
    save_weights(plain, half_model, {"step": 7})
    assert decompress(path) == plain.read_bytes()
    assert path.stat().st_size < 0.75 * plain.stat().st_size
    (weights, config), (expected, same) = read_weights(path), read_weights(plain)
    assert config == same
    assert weights.keys() == expected.keys()
    for name, x in weights.items():
        assert x.dtype == expected[name].dtype, name
        assert torch.equal(x, expected[name]), name
    again: Any = flashcaps.load(path)
    assert again.config["step"] == 7
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(again(images).scores, flashcaps.load(plain)(images).scores)


def test_it_goes_by_content_whatever_the_name(path: Path) -> None:
    other = path.rename(path.with_name("weights"))
    assert flashcaps.load(other).config["step"] == 7
    path.write_bytes(decompress(other))
    assert flashcaps.load(path).config["step"] == 7
    assert not is_compressed(path)


def test_every_cut_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for k in (0, 1, 6, 12, *range(20, len(whole), len(whole) // 40), len(whole) - 1):
        refused(path, whole[:k])
    assert f"ends after {len(whole) - 1:,} bytes" in refused(path, whole[:-1])


def test_every_flipped_bit_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for place in (*range(24), *range(24, len(whole), len(whole) // 60), *range(len(whole) - 40, len(whole))):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        refused(path, bytes(damaged))


def test_what_follows_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    assert "found 3 bytes" in refused(path, whole + b"abc")
    assert f"found {len(whole):,} bytes" in refused(path, whole + whole)


def test_weights_that_are_others_than_hashed_are_noticed(path: Path) -> None:
    raw = bytearray(decompress(path))
    raw[-1] ^= 1
    assert "expected sha256" in refused(path, compress(bytes(raw)))


@pytest.mark.parametrize("raw", [b"", b"no weights", struct.pack("<Q", 1 << 40)], ids=["empty", "text", "header"])
def test_compressed_things_that_are_no_weights(path: Path, raw: bytes) -> None:
    assert "not a whole safetensors file" in refused(path, compress(raw))


@pytest.mark.parametrize("tensor", [
    b'"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]',
    b'"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]',
], ids=["dtype", "size"])  # fmt: skip
def test_tensors_torch_does_not_have(path: Path, tensor: bytes) -> None:
    header = b'{"x":{' + tensor + b"}}"
    refused(path, compress(struct.pack("<Q", len(header)) + header + b"\0" * (b"[0,1]" in tensor)))


def test_safetensors_of_others_are_named(path: Path) -> None:
    from safetensors.torch import save

    assert "without its config" in refused(path, compress(save({"x": torch.zeros(2)})))


def test_a_bomb_is_refused_before_it_fills_the_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = lzma.compress(b"\0" * (1 << 26), preset=0)  # whose dictionary, of 256 KiB, is not what is measured
    assert len(bomb) < 20_000
    monkeypatch.setattr(checkpoint, "LIMIT", 1 << 20)
    tracemalloc.start()
    try:
        assert "expected at most 1,048,576 bytes of weights, found more; refused" in refused(path, bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_the_limit_itself_is_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = decompress(path)
    monkeypatch.setattr(checkpoint, "LIMIT", len(raw))
    assert decompress(path) == raw
    monkeypatch.setattr(checkpoint, "LIMIT", len(raw) - 1)
    with pytest.raises(ValueError, match="found more; refused"):
        decompress(path)
    with pytest.raises(ValueError, match=r"weights: expected at most .* bytes to compress, got .*; leave out \.xz"):
        compress(raw)
    monkeypatch.setattr(checkpoint, "LIMIT", path.stat().st_size - 1)  # then the file is not read whole
    with pytest.raises(ValueError, match="found more; refused"):
        decompress(path)


def test_a_dictionary_of_gigabytes_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    head = bytearray(whole[12:24])  # the block's header: sizes, flags, filter, the dictionary's size, CRC32
    assert head[:4] == b"\x02\x00\x21\x01"
    head[4] = 40  # 4 GiB
    head[8:] = struct.pack("<I", zlib.crc32(head[:8]))
    assert "Memory usage limit exceeded" in refused(path, whole[:12] + bytes(head) + whole[24:])


def test_the_command_line_tells_in_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SystemExit) as left:
        main(["evaluate", str(path)])
    said = capsys.readouterr()
    assert left.value.code == 1
    assert said.err.startswith(f"error: {path}: ends after")
    assert said.err.count("\n") == 1


def test_python_without_lzma_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(ImportError, match=r"\.xz files need Python's module lzma"):
        flashcaps.load(path)


def test_any_tool_unpacks_it_and_the_same_weights_give_the_same_bytes(path: Path) -> None:
    assert lzma.decompress(path.read_bytes(), format=lzma.FORMAT_XZ) == decompress(path)
    assert compress(decompress(path)) == path.read_bytes()
