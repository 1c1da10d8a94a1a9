import numpy as np
import pytest
import torch

from flashcaps.data import load_data

N = 4


def records(labels: list[list[int]], pixels: np.ndarray) -> bytes:
    return b"".join(bytes(label) + row.tobytes() for label, row in zip(labels, pixels, strict=True))


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (N, 3072), dtype=np.uint8)


def write10(root, pixels):
    (root / "cifar10").mkdir()
    for stem in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (root / "cifar10" / f"{stem}.bin").write_bytes(records([[0], [3], [9], [1]], pixels))


def test_cifar10(tmp_path, pixels):
    write10(tmp_path, pixels)
    with pytest.raises(ValueError, match="expected 10,000 images, found 4"):
        load_data("cifar10", tmp_path)
    assert len(load_data("cifar10", tmp_path, per_file=None).test) == 4
    data = load_data("cifar10", tmp_path, per_file=N)
    assert (len(data.train), len(data.test), data.shape) == (5 * N, N, (3, 32, 32))
    assert data.test.labels.tolist() == [0, 3, 9, 1]
    assert np.array_equal(data.test.images.numpy(), pixels.reshape(N, 3, 32, 32))
    assert torch.equal(data.train.images[:N], data.test.images)


def test_cifar100(tmp_path, pixels):
    folder = tmp_path / "cifar100"
    folder.mkdir()
    coarse, fine = [4, 19, 0, 7], [99, 0, 50, 12]
    whole = records([list(pair) for pair in zip(coarse, fine, strict=True)], pixels)
    (folder / "train.bin").write_bytes(whole)
    (folder / "test.bin").write_bytes(whole[: len(whole) // 2])
    data = load_data("cifar100", tmp_path, counts=(N, 2))
    assert data.train.labels.tolist() == fine
    assert data.train.info["coarse"].tolist() == coarse
    assert data.test.labels.tolist() == fine[:2]
    assert (data.classes, data.class_names[99], len(data.class_names)) == (100, "worm", 100)


@pytest.mark.parametrize(("change", "message"), [
    (lambda raw: raw[:-1], "expected a whole number of records of 3,073 bytes, found"),
    (lambda raw: raw[:-3073], "expected 4 images, found 3"),
    (lambda raw: b"\x0a" + raw[1:], "expected labels from 0 to 9, found 1 to 10"),
])  # fmt: skip
def test_damaged_binary_is_refused(tmp_path, pixels, change, message):
    write10(tmp_path, pixels)
    path = tmp_path / "cifar10" / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"data_batch_3.bin: {message}"):
        load_data("cifar10", tmp_path, per_file=N)


@pytest.mark.data
@pytest.mark.parametrize(("name", "each", "expected"), [("cifar10", 5000, [0.4914, 0.4822, 0.4465]),
                                                        ("cifar100", 500, [0.5071, 0.4865, 0.4409])])  # fmt: skip
def test_published_files(real_root, name, each, expected):
    data = load_data(name, real_root)
    assert torch.bincount(data.train.labels).tolist() == [each] * data.classes
    assert (data.train.images.float().mean((0, 2, 3)) / 255).tolist() == pytest.approx(expected, abs=1e-4)
