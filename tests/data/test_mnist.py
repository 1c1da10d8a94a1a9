import gzip

import numpy as np
import pytest
import torch

from flashcaps.data import load_data
from tests.data.files import idx_bytes, write_digits


@pytest.mark.parametrize("packed", [True, False])
def test_reads_the_four_files(tmp_path, packed):
    written = write_digits(tmp_path / "mnist", packed=packed)
    data = load_data("mnist", tmp_path)
    assert (len(data.train), len(data.test), data.classes, data.shape) == (60, 30, 10, (1, 28, 28))
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64
    assert np.array_equal(data.train.images[:, 0].numpy(), written["train-images-idx3-ubyte"])
    assert np.array_equal(data.test.labels.numpy(), written["t10k-labels-idx1-ubyte"])


def test_wrong_label_is_refused(digit_root):
    path = digit_root / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.full(30, 10))))
    with pytest.raises(ValueError, match=r"t10k-labels.*expected labels from 0 to 9, found 10 to 10"):
        load_data("mnist", digit_root)


@pytest.mark.data
def test_published_files(real_root):
    data = load_data("mnist", real_root)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert torch.bincount(data.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train.images.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
