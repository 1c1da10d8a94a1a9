"""Compressed weights: the same bits, noticed when damaged, never more than they may be."""

from __future__ import annotations

import lzma
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.cli import main
from flashcaps.models import create_model
from flashcaps.training import compressed
from flashcaps.training.checkpoint import compress, decompress, is_compressed, read_weights, save_weights

NAMED = r"^\S*small\.safetensors\.xz: [^\n]*$"  # one line that begins with the file


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(1)
    made = create_model("capsnet_tiny", backbone={"channels": 4}, primary={"types": 2}, decoder=[16])
    return made.to(torch.bfloat16).eval()


@pytest.fixture
def path(tmp_path: Path, model: Any) -> Path:
    save_weights(tmp_path / "small.safetensors.xz", model, {"step": 7})
    return tmp_path / "small.safetensors.xz"


def refused(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=NAMED) as told:
        flashcaps.load(path)
    return str(told.value)


def test_the_same_bits_come_back(path: Path, model: Any) -> None:
    plain = path.with_name("small.safetensors")
    save_weights(plain, model, {"step": 7})
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


def test_the_same_weights_give_the_same_bytes(path: Path) -> None:
    assert compress(decompress(path)) == path.read_bytes()


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
    monkeypatch.setattr(compressed, "LIMIT", 1 << 20)
    tracemalloc.start()
    try:
        assert "expected at most 1,048,576 bytes of weights, found more; refused" in refused(path, bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_the_limit_itself_is_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = decompress(path)
    monkeypatch.setattr(compressed, "LIMIT", len(raw))
    assert decompress(path) == raw
    monkeypatch.setattr(compressed, "LIMIT", len(raw) - 1)
    with pytest.raises(ValueError, match="found more; refused"):
        decompress(path)
    with pytest.raises(ValueError, match=r"weights: expected at most .* bytes to compress, got .*; leave out \.xz"):
        compress(raw)


def test_a_file_larger_than_the_limit_is_not_read_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "LIMIT", path.stat().st_size - 1)
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


def test_any_tool_unpacks_it(path: Path) -> None:
    assert lzma.decompress(path.read_bytes(), format=lzma.FORMAT_XZ) == decompress(path)
