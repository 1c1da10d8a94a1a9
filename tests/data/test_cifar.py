import pickle

import numpy as np
import pytest
import torch

from flashcaps.data import load_data
from flashcaps.data.cifar import read_python

N = 4


def records(labels: list[list[int]], pixels: np.ndarray) -> bytes:
    return b"".join(bytes(label) + row.tobytes() for label, row in zip(labels, pixels, strict=True))


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (N, 3072), dtype=np.uint8)


def write10(root, pixels, *, python: bool = False):
    folder = root / "cifar10" / ("cifar-10-batches-py" if python else ".")
    folder.mkdir(parents=True)
    for stem in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        if python:
            batch = {b"data": pixels, b"labels": [0, 3, 9, 1], b"batch_label": b"x", b"filenames": [b"a.png"] * N}
            (folder / stem).write_bytes(pickle.dumps(batch, protocol=2))
        else:
            (folder / f"{stem}.bin").write_bytes(records([[0], [3], [9], [1]], pixels))


@pytest.mark.parametrize("python", [False, True])
def test_cifar10_both_versions(tmp_path, pixels, python):
    write10(tmp_path, pixels, python=python)
    data = load_data("cifar10", tmp_path, per_file=N)
    assert (len(data.train), len(data.test), data.shape) == (5 * N, N, (3, 32, 32))
    assert data.test.labels.tolist() == [0, 3, 9, 1]
    assert np.array_equal(data.test.images.numpy(), pixels.reshape(N, 3, 32, 32))
    assert torch.equal(data.train.images[:N], data.test.images)


def test_cifar10_as_python_2_wrote_it(tmp_path):
    # {'data': array([[...]], dtype=uint8), 'labels': [7]} in protocol 2 with numpy.core and byte strings
    row = bytes(range(256)) * 12
    raw = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T" + len(row).to_bytes(4, "little") + row + b"tbU\x06labels](K\x07eu."
    )
    path = tmp_path / "data_batch_1"
    path.write_bytes(raw)
    pixels, (labels,) = read_python(path, 10)
    assert pixels.tobytes() == row
    assert labels.tolist() == [7]


def test_cifar100_both_versions(tmp_path, pixels):
    folder = tmp_path / "cifar100"
    folder.mkdir()
    coarse, fine = [4, 19, 0, 7], [99, 0, 50, 12]
    (folder / "train.bin").write_bytes(records([list(pair) for pair in zip(coarse, fine, strict=True)], pixels))
    batch = {b"data": pixels[:2], b"coarse_labels": coarse[:2], b"fine_labels": fine[:2]}
    (folder / "test").write_bytes(pickle.dumps(batch, protocol=2))
    data = load_data("cifar100", tmp_path, counts=(N, 2))
    assert data.train.labels.tolist() == fine
    assert data.train.info["coarse"].tolist() == coarse
    assert data.test.labels.tolist() == fine[:2]
    assert (data.classes, data.class_names[99], len(data.class_names)) == (100, "worm", 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "expected a whole number of records of 3,073 bytes, found"),
        (lambda raw: raw[:-3073], "expected 4 images, found 3"),
        (lambda raw: b"\x0a" + raw[1:], "expected labels from 0 to 9, found 1 to 10"),
    ],
)
def test_damaged_binary_is_refused(tmp_path, pixels, change, message):
    write10(tmp_path, pixels)
    path = tmp_path / "cifar10" / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"data_batch_3.bin: {message}"):
        load_data("cifar10", tmp_path, per_file=N)


def test_default_count_is_the_published_one(tmp_path, pixels):
    write10(tmp_path, pixels)
    with pytest.raises(ValueError, match="expected 10,000 images, found 4"):
        load_data("cifar10", tmp_path)
    assert len(load_data("cifar10", tmp_path, per_file=None).test) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "expected a pickled dict, found list"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, r"expected a dict with 'labels', found \['data'\]"),
        ({b"data": np.zeros((2, 9), np.uint8), b"labels": [0, 0]}, r"'data' uint8 \(N, 3072\), found uint8 \(2, 9\)"),
        ({b"data": [1], b"labels": [0]}, r"'data' uint8 \(N, 3072\), found list"),
        ({b"data": pytest.fail, b"labels": [0]}, "expected a pickle of numpy arrays and nothing else.*refused"),
    ],
)
def test_pickle_of_something_else_is_refused(tmp_path, content, message):
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=message):
        read_python(path, 10)


@pytest.mark.data
@pytest.mark.parametrize(("name", "each", "expected"), [("cifar10", 5000, [0.4914, 0.4822, 0.4465]),
                                                        ("cifar100", 500, [0.5071, 0.4865, 0.4409])])  # fmt: skip
def test_published_files(real_root, name, each, expected):
    data = load_data(name, real_root)
    assert torch.bincount(data.train.labels).tolist() == [each] * data.classes
    assert (data.train.images.float().mean((0, 2, 3)) / 255).tolist() == pytest.approx(expected, abs=1e-4)
