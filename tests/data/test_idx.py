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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((lambda raw, keep=keep: raw[:keep], ".*, found") for keep in (0, 3, 9, 16, 39)),
        (lambda raw: gzip.compress(raw)[:-9], "a whole gzip file"),
        (lambda raw: raw + b"\0", "24 bytes of 2 x 3 x 4, found 25"),
        (lambda raw: b"\0\0\x09\x03" + raw[4:], "magic 00000803 .*, found 00000903"),
        (lambda raw: b"\0\0\x08\x01" + raw[4:], "magic 00000803 .*, found 00000801"),
        (lambda raw: b"\x01\0\x08\x03" + raw[4:], "magic 00000803 .*, found 01000803"),
    ],
)
def test_damaged_file_is_refused(tmp_path, array, change, message):
    (tmp_path / "x").write_bytes(change(idx_bytes(array)))
    with pytest.raises(ValueError, match=f"x: expected {message}"):
        read_idx(tmp_path / "x", 3)
