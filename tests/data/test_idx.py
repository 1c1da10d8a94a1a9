import gzip

import numpy as np
import pytest

from flashcaps.data.idx import read_idx
from tests.data.files import idx_bytes


@pytest.fixture
def array():
    return np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_reads_packed_and_raw(tmp_path, array, pack):
    path = tmp_path / "x-idx3-ubyte.gz"
    path.write_bytes(pack(idx_bytes(array)))
    assert read_idx(path, 3).tolist() == array.tolist()


@pytest.mark.parametrize("keep", [0, 3, 9, 16, 39])
def test_truncated_raw_file_is_refused(tmp_path, array, keep):
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(array)[:keep])
    with pytest.raises(ValueError, match=r"x: expected .*, found"):
        read_idx(path, 3)


def test_truncated_gzip_file_is_refused(tmp_path, array):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx_bytes(array))[:-9])
    with pytest.raises(ValueError, match=r"x\.gz: expected a whole gzip file"):
        read_idx(path, 3)


def test_longer_file_is_refused(tmp_path, array):
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(array) + b"\0")
    with pytest.raises(ValueError, match="expected 24 bytes of 2 x 3 x 4, found 25"):
        read_idx(path, 3)


@pytest.mark.parametrize("magic", [b"\0\0\x09\x03", b"\0\0\x08\x01", b"\x01\0\x08\x03"])
def test_wrong_magic_is_refused(tmp_path, array, magic):
    path = tmp_path / "x"
    path.write_bytes(magic + idx_bytes(array)[4:])
    with pytest.raises(ValueError, match=f"expected magic 00000803 .*, found {magic.hex()}"):
        read_idx(path, 3)
