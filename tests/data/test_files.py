"""Checksums noted beside files, and files that unpack to too much."""

import gzip
import hashlib
from pathlib import Path

import pytest

from flashcaps.data import files as _files
from flashcaps.data.files import SUMS, note_sums, read_bytes, read_sums


def test_a_noted_file_is_checked_whenever_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "set" / "trees" / "a.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"content")
    note_sums(tmp_path / "set", [path])
    assert read_bytes(path) == b"content"
    path.write_bytes(b"contend")
    with pytest.raises(ValueError, match=rf"a\.txt: expected sha256 {hashlib.sha256(b'content').hexdigest()} as in "
                                         r"SHA256SUMS, found \w{64} in 7 bytes"):
        read_bytes(path)


def test_sums_are_as_sha256sum_writes_them_and_add_up(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
        note_sums(tmp_path, [tmp_path / name])
    lines = (tmp_path / SUMS).read_text().splitlines()
    assert lines == [f"{hashlib.sha256(n.encode()).hexdigest()}  {n}" for n in "ab"]
    assert read_sums(tmp_path).keys() == {"a", "b"}
    assert read_sums(tmp_path / "none") == {}
    before = (tmp_path / SUMS).stat().st_mtime_ns
    note_sums(tmp_path, [tmp_path / "a"])  # nothing new, nothing written
    assert (tmp_path / SUMS).stat().st_mtime_ns == before


def test_a_gzip_file_unpacks_to_so_much_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\0" * 1000))
    monkeypatch.setattr(_files, "LIMIT", 1000)
    assert read_bytes(tmp_path / "a.gz") == b"\0" * 1000
    monkeypatch.setattr(_files, "LIMIT", 999)
    with pytest.raises(ValueError, match=r"a\.gz: expected at most 999 bytes unpacked, found more"):
        read_bytes(tmp_path / "a.gz")
