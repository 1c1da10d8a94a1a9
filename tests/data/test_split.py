import pytest
import torch

from flashcaps.data import Dataset, Split, describe, holdout, to_float


def make(counts: list[int]) -> Split:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return Split(images.contiguous(), labels, {"place": torch.arange(len(labels))})


def test_split_rejects_what_is_not_uint8_images_and_columns_of_another_length():
    with pytest.raises(ValueError, match=r"expected uint8 or float32 \(N, C, H, W\), got torch.float32 \(3, 2, 2\)"):
        Split(torch.zeros(3, 2, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="labels: expected 3 rows"):
        Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="azimuth: expected 3 rows"):
        Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3), {"azimuth": torch.zeros(4)})
    with pytest.raises(ValueError, match="text: expected 3 phrases"):
        Split(torch.zeros(3, 0, 0, 0, dtype=torch.uint8), torch.zeros(3), text=("one",))


def test_select_keeps_order_info_and_text():
    images = torch.empty(3, 0, 0, 0, dtype=torch.uint8)
    split = Split(images, torch.arange(3), {"k": torch.arange(3) * 10}, tuple("abc"))
    picked = split.select(torch.tensor([2, 0]))
    assert picked.labels.tolist() == [2, 0]
    assert picked.info["k"].tolist() == [20, 0]
    assert picked.text == ("c", "a")
    assert split.select(slice(1, 3)).text == ("b", "c")


def test_to_float_is_in_unit_range_and_leaves_the_source_alone():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert to_float(images).tolist() == pytest.approx([0, 0.2, 1])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert to_float(images, dtype)[2] == 1
    assert images.tolist() == [0, 51, 255]
    x = torch.tensor([0.5])
    assert to_float(x).item() == 0.5


@pytest.mark.parametrize("count", [1, 7, 25, 99])
def test_holdout_is_a_stratified_partition(count):
    split = make([50, 30, 20])
    train, validation = holdout(split, count=count, seed=3)
    assert len(validation) == count
    assert len(train) == 100 - count
    both = torch.cat([train.info["place"], validation.info["place"]])
    assert both.sort().values.tolist() == list(range(100))
    share = torch.bincount(validation.labels, minlength=3)
    assert (share - count * torch.tensor([0.5, 0.3, 0.2])).abs().max() < 1


@pytest.mark.parametrize("counts", [[12, 6, 2], [2, 6, 12]])
def test_holdout_gives_what_is_left_over_to_those_most_owed(counts):
    """7 of 20: shares of 4.2, 2.1 and 0.7."""
    _, validation = holdout(make(counts), count=7)
    expected = {12: 4, 6: 2, 2: 1}
    assert torch.bincount(validation.labels).tolist() == [expected[n] for n in counts]


def test_holdout_takes_several_labels_an_example():
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).repeat(10, 1)
    _, validation = holdout(Split(torch.zeros(20, 1, 2, 2), labels), count=6)
    assert validation.labels.sum(0).tolist() == [6, 3]


def test_holdout_depends_on_the_seed_alone_and_says_what_is_possible():
    split = make([40, 60])
    one, again, other = (holdout(split, count=20, seed=s)[1].info["place"].tolist() for s in (1, 1, 2))
    assert one == again
    assert one != other
    assert len(one) == 20
    for count in (0, 100):
        with pytest.raises(ValueError, match="1 to 99"):
            holdout(split, count=count)


def test_describe_names_sizes_classes_and_further_labels():
    split = make([3, 4])
    text = describe(Dataset("toy", split, split.select(torch.arange(2)), 2, (1, 2, 2), class_names=("cat", "dog")))
    assert text.splitlines() == [
        "toy: 1x2x2 images, 2 classes",
        "  train            7, 3 to 4 a class; also place",
        "  test             2, 0 to 2 a class; also place",
        "  classes    cat, dog",
    ]
    several = Split(split.images, torch.eye(2)[split.labels])
    assert "7, 3 to 4 a class" in describe(Dataset("toy", several, several, 2, (1, 2, 2), multilabel=True))
