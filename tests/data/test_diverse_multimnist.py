import pytest
import torch

from flashcaps.data import DiverseMultiMNIST, MultiMNIST, load_data, make_generator


@pytest.fixture
def diverse(digit_root):
    data = load_data("diverse_multimnist", digit_root)
    assert data.compose is DiverseMultiMNIST
    return data.compose(data.train)


def test_one_image_in_six_has_one_digit(diverse):
    batch = diverse.sample(6_000, make_generator(0))
    single = batch.labels[:, 1] < 0
    assert single.float().mean().item() == pytest.approx(1 / 6, abs=0.02)  # four standard deviations
    assert (batch.targets.sum(1) == torch.where(single, 1, 2)).all()
    assert (batch.labels[:, 0] != batch.labels[:, 1]).all()


def test_single_digit_is_its_source_and_the_second_is_black(diverse):
    batch = diverse.sample(200, make_generator(1))
    single = batch.labels[:, 1] < 0
    assert torch.equal(batch.images[single], batch.sources[single, 0])
    assert batch.sources[single, 1].abs().max() == 0
    assert (batch.sources[~single, 1].amax((1, 2, 3)) > 0).all()
    assert (batch.targets[single].argmax(1) == batch.labels[single, 0]).all()


def test_pairs_are_those_of_multimnist(diverse):
    draw = diverse.draw(100, make_generator(2))
    draw[:, 6] = 1
    pair = MultiMNIST.compose(diverse, draw)
    for ours, theirs in zip(diverse.compose(draw), pair, strict=True):
        assert torch.equal(ours, theirs)


def test_fixed_set_is_given_by_index(diverse):
    fixed = diverse.fixed(10_000, seed=1)
    assert torch.equal(fixed.fixed_batch(40, 80).images[10:20], fixed.fixed_batch(50, 60).images)
    share = torch.cat([b.labels[:, 1] < 0 for b in fixed.batches(1000)]).float().mean()
    assert share.item() == pytest.approx(1 / 6, abs=0.015)
