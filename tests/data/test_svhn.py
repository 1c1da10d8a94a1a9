import numpy as np
import pytest
import torch
from scipy.io import savemat

from flashcaps.data import load_data


def write(root, labels, *, shape=(32, 32, 3)):
    (root / "svhn").mkdir(exist_ok=True)
    x = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    y = np.array(labels, np.uint8)[:, None]
    for part in ("train", "test"):
        savemat(root / "svhn" / f"{part}_32x32.mat", {"X": x, "y": y}, do_compression=True)
    return x


def test_reads_images_and_turns_ten_into_zero(tmp_path):
    x = write(tmp_path, [10, 1, 9])
    data = load_data("svhn", tmp_path)
    assert data.train.labels.tolist() == [0, 1, 9]
    assert data.train.images.shape == (3, 3, 32, 32)
    assert torch.equal(data.test.images[1, 2], torch.from_numpy(x[:, :, 2, 1].copy()))


@pytest.mark.parametrize(("labels", "shape", "message"), [
    ([0, 1, 2], (32, 32, 3), "labels from 1 to 10, found"),
    ([11, 1, 2], (32, 32, 3), "labels from 1 to 10, found"),
    ([1, 2], (32, 32, 3), "3 labels, one per image, found 2"),
    ([1, 2, 3], (32, 16, 3), r"X uint8 \(32, 32, 3, N\), found uint8 \(32, 16, 3, 3\)"),
])  # fmt: skip
def test_values_that_do_not_fit_are_refused(tmp_path, labels, shape, message):
    write(tmp_path, labels, shape=shape)
    with pytest.raises(ValueError, match=f"train_32x32.mat: expected {message}"):
        load_data("svhn", tmp_path)


def test_file_without_the_variable_is_refused(tmp_path):
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "train_32x32.mat", {"Z": np.zeros(3)})
    (tmp_path / "svhn" / "test_32x32.mat").touch()
    with pytest.raises(ValueError, match=r"expected a variable 'X', found \['Z'\]"):
        load_data("svhn", tmp_path)
    path = tmp_path / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(ValueError, match=r"train_32x32\.mat: expected a MATLAB 5 file, found 150 bytes that do not"):
        load_data("svhn", tmp_path)
