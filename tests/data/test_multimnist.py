import itertools

import pytest
import torch

from flashcaps.data import DiverseMultiMNIST, MultiMNIST, Split, load_data, to_float
from flashcaps.training.capture import record


def boxes(counts: list[int], value: int = 255) -> Split:
    """Digits that are 20 x 20 boxes; class c has counts[c] of them. Values tell the digits apart when value is 0."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    images = torch.zeros(len(labels), 1, 28, 28, dtype=torch.uint8)
    fill = torch.arange(1, len(labels) + 1) if value == 0 else torch.full((len(labels),), value)
    images[:, :, 4:24, 4:24] = fill[:, None, None, None].to(torch.uint8)
    return Split(images, labels)


@pytest.fixture
def pairs():
    return MultiMNIST(boxes([3, 40, 1, 20, 5, 9, 2, 7, 30, 13]))


@pytest.mark.parametrize("count", [0, 2000])
def test_a_batch_has_two_classes_an_image_and_its_targets_name_both(pairs, count):
    batch = pairs.at(torch.arange(count), 1)
    assert batch.inputs.shape == (count, 1, 36, 36)
    assert batch.targets.shape == (count, 10)
    assert batch.pictures.shape == (count, 2, 1, 36, 36)
    assert (batch.inputs.dtype, batch.targets.dtype, batch.chosen.dtype) == (torch.float32, torch.float32, torch.int64)
    assert (batch.targets.sum(1) == 2).all()
    assert torch.equal(batch.targets.gather(1, batch.chosen), torch.ones(count, 2))


def test_every_other_digit_is_as_likely_a_partner():
    digits = boxes([3, 5, 2], value=0)
    pairs = MultiMNIST(Split(digits.images[:, :, 14:15, 14:15], digits.labels), shift=1)  # small: there are many
    batch = pairs.at(torch.arange(60_000), 2)
    digit = (batch.pictures.amax((2, 3, 4)) * 255).round().long() - 1  # the value of a box is its digit
    joint = torch.zeros(10, 10).index_put_((digit[:, 0], digit[:, 1]), torch.ones(60_000), accumulate=True) / 60_000
    labels = pairs.labels
    other = (labels[:, None] != labels[None, :]).float()
    expected = other / other.sum(1, keepdim=True) / 10
    assert (joint - expected).abs().max() < 0.003  # six standard deviations
    assert (joint[other == 0] == 0).all()


def test_boxes_overlap_by_72_to_73_percent_in_expectation():
    """(1 - E|a - b| / 20)^2 over shifts a, b in 0..8, and the same through the generator, over all 9^4 shifts."""
    shifts = range(9)
    mean = sum(20 - abs(a - b) for a in shifts for b in shifts) / 81 / 20
    assert 0.72 < mean**2 < 0.73
    grid = torch.tensor(list(itertools.product(shifts, repeat=4)))
    draw = torch.cat([torch.zeros(len(grid), 2, dtype=torch.int64), grid], dim=1)
    first, second = MultiMNIST(boxes([1, 1])).compose(draw).pictures.unbind(1)
    measured = (first * second > 0).sum((1, 2, 3)) / 400
    assert measured.double().mean().item() == pytest.approx(mean**2, abs=1e-6)


def test_sampled_shifts_reach_everywhere_alike():
    batch = MultiMNIST(boxes([4, 4])).at(torch.arange(9_000), 3)
    for dim in (4, 3):  # first row, then first column with ink
        first = (batch.pictures.amax((2, dim)) > 0).float().argmax(-1) - 4
        counts = torch.bincount(first.flatten(), minlength=9)
        assert len(counts) == 9
        assert ((counts - 2000) ** 2 / 2000).sum() < 26.1  # 8 degrees of freedom: 99.9 % below


def test_image_is_the_sum_clipped_at_white():
    pairs = MultiMNIST(boxes([5, 5], value=200))
    batch = pairs.at(torch.arange(50), 4)
    assert torch.equal(batch.inputs, batch.pictures.sum(1).clamp(max=1))
    assert batch.inputs.unique().tolist() == pytest.approx([0, 200 / 255, 1])


def test_sources_are_the_digits_shifted(digit_root):
    split = load_data("multimnist", digit_root).train
    pairs = MultiMNIST(split)
    draw = torch.tensor([[7, 0, 0, 8, 3, 5]])
    batch = pairs.compose(draw)
    assert batch.chosen[0, 0] == 7
    assert torch.equal(batch.pictures[0, 0, :, 0:28, 8:36], to_float(split.images[7]))
    assert batch.pictures[0, 0].sum() == to_float(split.images[7]).sum()
    second = batch.pictures[0, 1, :, 3:31, 5:33]
    assert (second == to_float(split.images)).flatten(1).all(1).sum() == 1


def test_pairs_are_given_by_seed_and_index(pairs):
    index = torch.arange(500_000, 500_060)
    whole, part = pairs.at(index, 9), pairs.at(index[20:30], 9)
    assert torch.equal(whole.inputs[20:30], part.inputs)
    assert not torch.equal(whole.inputs, pairs.at(index, 8).inputs)


def test_each_digit_comes_first_equally_often(pairs):
    first = pairs.at(torch.arange(3 * len(pairs))).chosen[:, 0]
    assert torch.equal(torch.bincount(first), 3 * torch.bincount(pairs.labels))


def test_train_and_test_digits_are_disjoint(digit_root):
    data = load_data("multimnist", digit_root)
    assert (data.shape, data.multilabel, data.classes) == ((1, 36, 36), True, 10)
    seen = []
    for split in (data.train, data.test):
        sources = data.compose(split).at(torch.arange(60)).pictures.flatten(0, 1)
        seen.append({bytes((s[s > 0] * 255).round().to(torch.uint8).tolist()) for s in sources})
    known = {bytes(image[image > 0].tolist()) for image in data.train.images}
    assert seen[0] <= known
    assert not seen[1] & known


def test_one_class_alone_is_refused():
    with pytest.raises(ValueError, match=r"digits: expected at least two classes, got class counts \[5, 0"):
        MultiMNIST(boxes([5]))


@pytest.fixture
def diverse(digit_root):
    data = load_data("diverse_multimnist", digit_root)
    assert data.compose is DiverseMultiMNIST
    return data.compose(data.train)


def test_one_image_in_six_has_one_digit_and_a_black_second_source(diverse):
    batch = diverse.at(torch.arange(6_000), 0)
    single = batch.chosen[:, 1] < 0
    assert single.float().mean().item() == pytest.approx(1 / 6, abs=0.02)  # four standard deviations
    assert (batch.targets.sum(1) == torch.where(single, 1, 2)).all()
    assert (batch.chosen[:, 0] != batch.chosen[:, 1]).all()
    assert torch.equal(batch.inputs[single], batch.pictures[single, 0])
    assert batch.pictures[single, 1].abs().max() == 0
    assert (batch.pictures[~single, 1].amax((1, 2, 3)) > 0).all()
    assert (batch.targets[single].argmax(1) == batch.chosen[single, 0]).all()


def test_diverse_pairs_are_those_of_multimnist(diverse):
    draw = torch.randint(1 << 40, (100, 7))
    draw[:, 6] = 1
    pair = MultiMNIST.compose(diverse, draw)
    for ours, theirs in zip(diverse.compose(draw)[:4], pair[:4], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.data
def test_published_digits(real_root):
    data = load_data("multimnist", real_root)
    batch = data.compose(data.test).at(torch.arange(10_000))
    assert (batch.chosen[:, 0] != batch.chosen[:, 1]).all()
    assert batch.inputs.max() == 1
    assert torch.equal(torch.bincount(batch.chosen[:, 0]), torch.bincount(data.test.labels))


@pytest.mark.gpu
def test_on_the_device_without_waiting_and_in_a_graph():
    split = boxes([3, 40, 1, 20], value=0)
    host, device = MultiMNIST(split), MultiMNIST(split.to("cuda"))
    index = torch.arange(100, device="cuda")
    assert torch.equal(device.at(index, 3).inputs.cpu(), host.at(index.cpu(), 3).inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        device.at(index)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph, batch = record(lambda: device.at(index))
    index += 100
    graph.replay()
    assert torch.equal(batch.inputs, device.at(torch.arange(100, 200, device="cuda")).inputs)
