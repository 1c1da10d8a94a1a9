import math

import numpy as np
import pytest
import torch
from scipy.io import savemat

from flashcaps.data import load_data
from flashcaps.data.affnist import random_affine, read_affnist, warp
from flashcaps.data.augment import shift


def write(path, labels=(3, 0, 9), pixels=1600, **drop):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(0).integers(0, 256, (pixels, 3), dtype=np.uint8)
    content = {"image": image, "label_int": np.array([labels], np.uint8), "human_readable_transform": np.zeros((6, 3))}
    savemat(path, {"affNISTdata": {k: v for k, v in content.items() if k not in drop}})
    return image


def test_trains_on_translated_digits_and_tests_on_the_published_row_by_row(digit_root):
    image = write(digit_root / "affnist" / "test.mat")
    data = load_data("affnist", digit_root)
    assert (len(data.train), data.shape) == (60, (1, 40, 40))
    assert torch.equal(data.train.images, load_data("translated_mnist", digit_root).train.images)
    assert data.test.labels.tolist() == [3, 0, 9]
    assert data.test.images.shape == (3, 1, 40, 40)
    assert torch.equal(data.test.images[1, 0, 2], torch.from_numpy(image[80:120, 1].copy()))


@pytest.mark.parametrize(("options", "message"), [
    ({"labels": (1, 2, 10)}, "labels from 0 to 9, found 1 to 10"),
    ({"labels": (1, 2)}, "3 labels, one per image, found 2"),
    ({"pixels": 1599}, r"image uint8 \(1600, N\), found uint8 \(1599, 3\)"),
    ({"label_int": None}, "a struct with 'label_int', found"),
])  # fmt: skip
def test_wrong_files_are_refused(tmp_path, options, message):
    write(tmp_path / "test.mat", **options)
    with pytest.raises(ValueError, match=f"test.mat: expected {message}"):
        read_affnist(tmp_path / "test.mat")


def test_translated_digits_are_whole_unchanged_and_everywhere(digit_root):
    digits = load_data("mnist", digit_root).train.images
    moved = load_data("translated_mnist", digit_root).train.images
    assert moved.shape == (60, 1, 40, 40)
    places = set()
    for digit, image in zip(digits, moved, strict=True):
        rows, columns = (torch.nonzero(image[0].any(dim))[:, 0] for dim in (1, 0))
        top, left = int(rows[0]) - 4, int(columns[0]) - 4
        assert torch.equal(image[:, top : top + 28, left : left + 28], digit)
        assert image.sum() == digit.sum()
        places.add((top, left))
    assert len(places) > 30
    assert {p[0] for p in places} <= set(range(13))


def test_centred_training_digits_are_the_middle_of_all_places(digit_root):
    data = load_data("translated_mnist", digit_root, centred=True)
    digits = load_data("mnist", digit_root).train.images
    assert torch.equal(data.train.images[:, :, 6:34, 6:34], digits)
    corner = torch.tensor([[-6, 6]]).expand(60, 2)
    assert torch.equal(shift(data.train.images, corner)[:, :, 0:28, 12:40], digits)


def test_sets_depend_on_the_seed_alone(digit_root):
    one, again = (load_data("affnist_style", digit_root, seed=1) for _ in range(2))
    other = load_data("affnist_style", digit_root, seed=2)
    assert torch.equal(one.test.images, again.test.images)
    assert not torch.equal(one.test.images, other.test.images)
    assert not torch.equal(one.train.images, other.train.images)
    assert torch.equal(one.test.labels, load_data("mnist", digit_root).test.labels)


def test_affine_range():
    """M = R(angle) [[1, k], [0, 1]] diag(sx, sy): undo it by a QR decomposition and look at each part."""
    u = torch.rand(2000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = random_affine(u)
    q, r = torch.linalg.qr(matrix)
    sign = torch.diagonal(r, dim1=1, dim2=2).sign()
    q, r = q * sign[:, None], r * sign[:, :, None]
    angle, (sx, sy), k = torch.atan2(q[:, 1, 0], q[:, 0, 0]), r.diagonal(dim1=1, dim2=2).T, r[:, 0, 1] / r[:, 1, 1]
    for value, limit in ((angle, math.radians(20)), (k, 0.2), (sx - 1, 0.2), (sy - 1, 0.2)):
        assert value.abs().max() <= limit + 1e-9
        assert value.abs().max() > 0.99 * limit
        assert value.mean().abs() < 0.05 * limit


@pytest.mark.parametrize(("matrix", "turns"), [([[1.0, 0.0], [0.0, 1.0]], 0), ([[0.0, -1.0], [1.0, 0.0]], -1)])
def test_a_digit_in_the_middle_is_left_alone_or_turned_clockwise_and_a_blank_image_blank(matrix, turns):
    """On the screen, x right, y down: a quarter turn takes (1, 0) to (0, 1)."""
    image = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    image[0, 0, 4:24, 4:24] = torch.arange(400).view(20, 20) % 255 + 1
    out = warp(image, torch.tensor(matrix).expand(2, 2, 2), torch.full((2, 2), 0.5))
    assert torch.equal(out[:, :, 6:34, 6:34], image.rot90(turns, (2, 3)))
    assert out.sum() == image.sum()


@pytest.mark.parametrize("place", [0.0, 1.0])
def test_all_ink_stays_on_the_canvas(place):
    """Every digit pushed into a corner keeps its ink: area times the determinant."""
    image = torch.zeros(64, 1, 28, 28, dtype=torch.uint8)
    image[:, :, 4:24, 4:24] = 200
    matrix = random_affine(torch.rand(64, 4, generator=torch.Generator().manual_seed(1)))
    out = warp(image, matrix, torch.full((64, 2), place))
    ink = out.double().sum((1, 2, 3))
    assert ink.tolist() == pytest.approx((200 * 400 * torch.linalg.det(matrix)).tolist(), rel=0.02)
