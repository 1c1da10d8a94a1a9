import pytest
import torch

from flashcaps.data import load_data
from tests.data.files import write_digits


@pytest.mark.parametrize("folder", ["fashion-mnist", "fashion_mnist"])
def test_reads_the_four_files(tmp_path, folder):
    write_digits(tmp_path / folder)
    data = load_data("fashion_mnist", tmp_path)
    assert (len(data.train), data.shape, data.class_names[9]) == (60, (1, 28, 28), "ankle boot")


def test_truncated_file_is_refused(tmp_path):
    write_digits(tmp_path / "fashion-mnist")
    path = tmp_path / "fashion-mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz: expected a whole gzip file"):
        load_data("fashion_mnist", tmp_path)


@pytest.mark.data
def test_published_files(real_root):
    data = load_data("fashion_mnist", real_root)
    assert torch.bincount(data.train.labels).tolist() == [6000] * 10
    assert data.train.images.float().mean().item() / 255 == pytest.approx(0.2860, abs=1e-4)
