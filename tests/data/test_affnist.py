import numpy as np
import pytest
import torch
from scipy.io import savemat

from flashcaps.data import load_data
from flashcaps.data.affnist import read_affnist


def write(path, labels=(3, 0, 9), pixels=1600, **drop):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(0).integers(0, 256, (pixels, 3), dtype=np.uint8)
    content = {"image": image, "label_int": np.array([labels], np.uint8), "human_readable_transform": np.zeros((6, 3))}
    savemat(path, {"affNISTdata": {k: v for k, v in content.items() if k not in drop}})
    return image


def test_reads_the_struct_row_by_row(tmp_path):
    image = write(tmp_path / "test.mat")
    split = read_affnist(tmp_path / "test.mat")
    assert split.labels.tolist() == [3, 0, 9]
    assert split.images.shape == (3, 1, 40, 40)
    assert torch.equal(split.images[1, 0, 2], torch.from_numpy(image[80:120, 1].copy()))


def test_trains_on_translated_digits_and_tests_on_the_published(digit_root):
    write(digit_root / "affnist" / "test.mat")
    data = load_data("affnist", digit_root)
    assert (len(data.train), len(data.test), data.shape) == (60, 3, (1, 40, 40))
    assert torch.equal(data.train.images, load_data("translated_mnist", digit_root).train.images)


def test_reads_the_batches_in_order(digit_root):
    for number in (1, 2, 10):
        write(digit_root / "affnist" / "test_batches" / f"{number}.mat", labels=(number % 10,) * 3)
    assert load_data("affnist", digit_root).test.labels.tolist() == [1, 1, 1, 2, 2, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": (1, 2, 10)}, "labels from 0 to 9, found 1 to 10"),
        ({"labels": (1, 2)}, "3 labels, one per image, found 2"),
        ({"pixels": 1599}, r"image uint8 \(1600, N\), found uint8 \(1599, 3\)"),
        ({"label_int": None}, "a struct with 'label_int', found"),
    ],
)
def test_wrong_files_are_refused(tmp_path, options, message):
    write(tmp_path / "test.mat", **options)
    with pytest.raises(ValueError, match=f"test.mat: expected {message}"):
        read_affnist(tmp_path / "test.mat")


@pytest.mark.parametrize("keep", [0, 100, 3000])
def test_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "test.mat"
    write(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"test.mat: expected"):
        read_affnist(path)
