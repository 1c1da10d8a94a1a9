import pytest
import torch

from flashcaps.data import load_data


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


def test_split_is_stratified_and_disjoint(digits):
    assert torch.bincount(digits.train.labels).tolist() == [400] * 10
    assert torch.bincount(digits.test.labels).tolist() == [100] * 10
    train, test = ({bytes(image.flatten().tolist()) for image in s.images} for s in (digits.train, digits.test))
    assert not train & test
    assert len(train) + len(test) == 5_000


def test_pixels_are_bytes(digits):
    assert digits.shape == (1, 28, 28)
    assert digits.train.images.dtype == torch.uint8
    assert digits.train.images.max() == 255
    assert digits.train.images.float().mean().item() / 255 == pytest.approx(0.13, abs=0.005)


def test_split_depends_on_the_seed_alone(digits):
    assert torch.equal(load_data("digits", seed=0).test.images, digits.test.images)
    assert not torch.equal(load_data("digits", seed=1).test.images, digits.test.images)


@pytest.mark.data
def test_digits_are_from_the_training_set(digits, real_root):
    published = load_data("mnist", real_root)
    known = {bytes(image.flatten().tolist()) for image in published.train.images}
    assert {bytes(image.flatten().tolist()) for image in digits.train.images} <= known
