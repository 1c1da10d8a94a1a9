import gzip
import struct

import numpy as np
import pytest

from flashcaps.data import load_data
from flashcaps.data.norb import read_matrix
from tests.data.files import NORB, norb_bytes


def arrays(part: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(part == "test")
    info = np.stack([rng.permutation(10)[:6], np.arange(6), np.arange(6) * 2 + 24, np.arange(6)], axis=1)
    return {
        "dat": rng.integers(0, 256, (6, 2, 96, 96), dtype=np.uint8),
        "cat": np.array([0, 1, 2, 3, 4, 0], np.int32),
        "info": info.astype(np.int32),
    }


@pytest.fixture
def root(tmp_path):
    (tmp_path / "smallnorb").mkdir()
    for part, stem in NORB.items():
        for kind, array in arrays(part).items():
            (tmp_path / "smallnorb" / f"{stem}-{kind}.mat.gz").write_bytes(gzip.compress(norb_bytes(array)))
    return tmp_path


def test_reads_pairs_categories_and_the_four_further_labels(root):
    data = load_data("smallnorb", root)
    expected = arrays("test")
    assert (data.classes, data.shape, data.class_names[2]) == (5, (2, 96, 96), "airplane")
    assert np.array_equal(data.test.images.numpy(), expected["dat"])
    assert data.test.labels.tolist() == expected["cat"].tolist()
    assert list(data.test.info) == ["instance", "elevation", "azimuth", "lighting"]
    assert data.test.info["azimuth"].tolist() == [24, 26, 28, 30, 32, 34]
    assert data.test.info["instance"].tolist() == expected["info"][:, 0].tolist()


def test_reads_raw_files_too(root):
    for path in list((root / "smallnorb").iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load_data("smallnorb", root).train) == 6


def replace(root, kind, change):
    path = root / "smallnorb" / f"{NORB['train']}-{kind}.mat.gz"
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


@pytest.mark.parametrize("kind", ["dat", "cat", "info"])
@pytest.mark.parametrize("keep", [0, 6, 18, -1])
def test_truncated_file_is_refused(root, kind, keep):
    replace(root, kind, lambda raw: raw[:keep])
    with pytest.raises(ValueError, match=rf"training-{kind}.mat.gz: expected .*bytes.*, found"):
        load_data("smallnorb", root)


def test_wrong_magic_and_dimensions_are_refused(tmp_path):
    path = tmp_path / "m.mat"
    path.write_bytes(norb_bytes(np.zeros((2, 3), np.int32)))
    with pytest.raises(ValueError, match=r"expected magic 0x1e3d4c55 .*, found 0x1e3d4c54"):
        read_matrix(path, "u1", 2)
    with pytest.raises(ValueError, match="expected 1 dimensions, found 2"):
        read_matrix(path, "<i4", 1)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("cat", lambda raw: raw[:20] + struct.pack("<i", 5) + raw[24:], "labels from 0 to 4, found"),
        ("info", lambda raw: raw[:20] + struct.pack("<i", 99) + raw[24:], "instance from 0 to 9, found"),
        ("cat", lambda raw: norb_bytes(np.zeros(5, np.int32)), "6 labels, one per image, found 5"),
        ("info", lambda raw: norb_bytes(np.zeros((6, 3), np.int32)), "4 columns, found 3"),
        ("dat", lambda raw: norb_bytes(np.zeros((6, 1, 9, 9), np.uint8)), "stereo pairs"),
    ],
)
def test_values_that_do_not_fit_are_refused(root, kind, change, message):
    replace(root, kind, change)
    with pytest.raises(ValueError, match=rf"training-{kind}.mat.gz: expected {message}"):
        load_data("smallnorb", root)
