"""Files of a run: written whole or not at all, compressed or not, checked when they are read."""

import errno
import json
import lzma
import os
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashcaps
from flashcaps.data.user_images import read_picture
from flashcaps.models import create_model, shipped, stored
from flashcaps.models.shipped import shipped_files
from flashcaps.models.stored import compress, decompress, find_weights
from flashcaps.training.checkpoint import load, load_state, save_state, save_weights, write_atomic

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


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_pickle_is_run(tmp_path: Path) -> None:
    evil, run = Evil(tmp_path / "evil"), tmp_path / "run"
    run.mkdir()
    torch.save({"x": evil}, tmp_path / "weights.pt")
    (run / "last.safetensors").write_bytes(pickle.dumps(evil))
    save_state(run, {"at": 1, "x": evil}, 1)  # with a checksum that is right
    np.save(tmp_path / "picture.npy", np.array([evil], dtype=object), allow_pickle=True)
    for read, file in ((load, "weights.pt"), (load, "run"), (load_state, "run"), (read_picture, "picture.npy")):
        with pytest.raises((ValueError, pickle.UnpicklingError)):
            read(tmp_path / file)
    assert not (tmp_path / "evil").exists()


def test_two_states_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save_state(tmp_path, {"at": step, "x": torch.full((3,), float(step))}, step)
    assert sorted(p.name[:14] for p in tmp_path.glob("state-*")) == ["state-00000020", "state-00000030"]
    assert load_state(tmp_path)["at"] == 30


def damaged(content: bytes) -> Iterator[bytes]:
    """Cut in forty places, and with a bit flipped in each of the first and the last bytes and in sixty between."""
    size = len(content)
    for k in (0, 1, 6, 12, *range(20, size, size // 40), size - 1):
        yield content[:k]
    for place in (*range(24), *range(24, size, size // 60), *range(size - 40, size)):
        raw = bytearray(content)
        raw[place] ^= 4
        yield bytes(raw)


def test_a_damaged_state_falls_back_to_the_one_before(tmp_path: Path) -> None:
    for step in (10, 20):
        save_state(tmp_path, {"at": step}, step)
    (path,) = tmp_path.glob("state-00000020-*.pt")
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        with pytest.warns(UserWarning, match=r"state-00000020-\w+\.pt is damaged"):
            assert load_state(tmp_path)["at"] == 10
    save_state(tmp_path, {"at": 30}, 30)  # keeps the good one beside it, not the damaged one
    next(tmp_path.glob("state-00000030-*.pt")).write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        assert load_state(tmp_path)["at"] == 10


def test_damaged_weights_are_never_loaded(tmp_path: Path, model: Any) -> None:
    path = tmp_path / "last.safetensors"
    save_weights(path, model, {})
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"last\.safetensors: "):
            load(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_writing_that_fails_leaves_the_old_file_and_says_what_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "config.json"
    write_atomic(path, "old")

    def full(*_: Any) -> None:
        raise OSError(number, "broken")

    monkeypatch.setattr(os, "fsync", full)
    why = "broken" if number == errno.EIO else r"config\.json: no room for 3 bytes .* bytes free there"
    with pytest.raises(OSError, match=why):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


NAMED = r"^\S*small\.safetensors\.xz: [^\n]*$"  # one line that begins with the file


@pytest.fixture
def path(tmp_path: Path, model: Any) -> Path:
    save_weights(tmp_path / "small.safetensors.xz", model.to(torch.bfloat16), {"step": 7})
    return tmp_path / "small.safetensors.xz"


def refused(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=NAMED) as told:
        flashcaps.load(path)
    return str(told.value)


def test_the_same_bits_come_back_from_any_tool(path: Path, model: Any) -> None:
    plain = path.with_name("small.safetensors")
    save_weights(plain, model, {"step": 7})
    raw = plain.read_bytes()
    assert decompress(path) == lzma.decompress(path.read_bytes(), format=lzma.FORMAT_XZ) == raw
    assert compress(raw) == path.read_bytes()  # the same weights give the same file
    assert path.stat().st_size < 0.75 * len(raw)
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(flashcaps.load(path)(images).scores, flashcaps.load(plain)(images).scores)
    other = path.rename(path.with_name("weights"))  # whatever the name, it goes by content
    path.write_bytes(raw)
    assert [flashcaps.load(file).config["step"] for file in (other, path)] == [7, 7]


def test_every_cut_flipped_bit_and_addition_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for content in damaged(whole):
        refused(path, content)
    assert f"ends after {len(whole) - 1:,} bytes" in refused(path, whole[:-1])
    assert "found 3 bytes" in refused(path, whole + b"abc")
    assert f"found {len(whole):,} bytes" in refused(path, whole + whole)
    other = bytearray(lzma.decompress(whole))
    other[-1] ^= 1
    assert "expected sha256" in refused(path, compress(bytes(other)))


def test_compressed_things_that_are_no_weights(path: Path) -> None:
    """Others than safetensors, and tensors that torch does not have: of another dtype, of a size beyond 64 bits."""
    for raw in (b"", b"no weights", struct.pack("<Q", 1 << 40)):
        assert "not a whole safetensors file" in refused(path, compress(raw))
    for tensor, content in (
        (b'"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]', b"\0"),
        (b'"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]', b""),
    ):
        header = b'{"x":{' + tensor + b"}}"
        refused(path, compress(struct.pack("<Q", len(header)) + header + content))


def test_a_bomb_is_refused_before_it_fills_the_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = lzma.compress(b"\0" * (1 << 26), preset=0)  # whose dictionary, of 256 KiB, is not what is measured
    assert len(bomb) < 20_000
    monkeypatch.setattr(stored, "LIMIT", 1 << 20)
    tracemalloc.start()
    try:
        assert "expected at most 1,048,576 bytes of weights, found more; refused" in refused(path, bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_the_limit_itself_is_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = decompress(path)
    monkeypatch.setattr(stored, "LIMIT", len(raw))
    assert decompress(path) == raw
    monkeypatch.setattr(stored, "LIMIT", len(raw) - 1)
    with pytest.raises(ValueError, match="found more; refused"):
        decompress(path)
    with pytest.raises(ValueError, match=r"weights: expected at most .* bytes to compress, got .*; leave out \.xz"):
        compress(raw)
    monkeypatch.setattr(stored, "LIMIT", path.stat().st_size - 1)  # then the file is not read whole
    with pytest.raises(ValueError, match="found more; refused"):
        decompress(path)


def test_a_dictionary_of_gigabytes_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    head = bytearray(whole[12:24])  # the block's header: sizes, flags, filter, the dictionary's size, CRC32
    assert head[:4] == b"\x02\x00\x21\x01"
    head[4] = 40  # 4 GiB
    head[8:] = struct.pack("<I", zlib.crc32(head[:8]))
    assert "Memory usage limit exceeded" in refused(path, whole[:12] + bytes(head) + whole[24:])
