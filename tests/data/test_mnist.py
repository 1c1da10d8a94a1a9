import gzip
import hashlib

import numpy as np
import pytest
import torch

from flashcaps.data import load_data
from flashcaps.data.mnist import read_idx
from tests.data.files import idx_bytes, write_digits

ARRAY = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize(("change", "message"), [
    *((lambda raw, keep=keep: raw[:keep], ".*, found") for keep in (0, 3, 9, 16, 39)),
    (lambda raw: gzip.compress(raw)[:-9], "a whole gzip file"),
    (lambda raw: raw + b"\0", "24 bytes of 2 x 3 x 4, found 25"),
    (lambda raw: b"\0\0\x09\x03" + raw[4:], "magic 00000803 .*, found 00000903"),
    (lambda raw: b"\0\0\x08\x01" + raw[4:], "magic 00000803 .*, found 00000801"),
    (lambda raw: b"\x01\0\x08\x03" + raw[4:], "magic 00000803 .*, found 01000803"),
])  # fmt: skip
def test_damaged_file_is_refused(tmp_path, change, message):
    (tmp_path / "x").write_bytes(change(idx_bytes(ARRAY)))
    with pytest.raises(ValueError, match=f"x: expected {message}"):
        read_idx(tmp_path / "x", 3)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "folder", "last"), [("mnist", "mnist", "9"),
                                                      ("fashion_mnist", "fashion-mnist", "ankle boot"),
                                                      ("fashion_mnist", "fashion_mnist", "ankle boot")])  # fmt: skip
def test_reads_the_four_files(tmp_path, name, folder, last, packed):
    written = write_digits(tmp_path / folder, packed=packed)
    data = load_data(name, tmp_path)
    assert (len(data.train), len(data.test), data.shape, data.class_names[9]) == (60, 30, (1, 28, 28), last)
    assert (data.train.images.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
    assert np.array_equal(data.train.images[:, 0].numpy(), written["train-images-idx3-ubyte"])
    assert np.array_equal(data.test.labels.numpy(), written["t10k-labels-idx1-ubyte"])


def test_wrong_label_is_refused(digit_root):
    path = digit_root / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.full(30, 10))))
    with pytest.raises(ValueError, match=r"t10k-labels.*expected labels from 0 to 9, found 10 to 10"):
        load_data("mnist", digit_root)


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


def test_digits_are_split_with_every_class_in_proportion_and_no_image_twice(digits):
    assert torch.bincount(digits.train.labels).tolist() == [400] * 10
    assert torch.bincount(digits.test.labels).tolist() == [100] * 10
    train, test = ({bytes(image.flatten().tolist()) for image in s.images} for s in (digits.train, digits.test))
    assert not train & test
    assert len(train) + len(test) == 5_000
    assert digits.shape == (1, 28, 28)
    held = hashlib.sha256(digits.test.images.numpy().tobytes()).hexdigest()
    assert held.startswith("944ba4ca51f727cd")  # results of runs on digits are of these
    assert digits.train.images.max() == 255
    assert digits.train.images.float().mean().item() / 255 == pytest.approx(0.13, abs=0.005)
    assert torch.equal(load_data("digits", seed=0).test.images, digits.test.images)
    assert not torch.equal(load_data("digits", seed=1).test.images, digits.test.images)


@pytest.mark.data
def test_published_files(digits, real_root):
    data = load_data("mnist", real_root)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert torch.bincount(data.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train.images.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    known = {bytes(image.flatten().tolist()) for image in data.train.images}
    assert {bytes(image.flatten().tolist()) for image in digits.train.images} <= known
    clothes = load_data("fashion_mnist", real_root)
    assert torch.bincount(clothes.train.labels).tolist() == [6000] * 10
    assert clothes.train.images.float().mean().item() / 255 == pytest.approx(0.2860, abs=1e-4)
