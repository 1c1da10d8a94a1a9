import pytest

from flashcaps.data import describe, load_data

TREES = [
    "(3 (2 It) (4 (2 's) (4 good)))",
    r"(2 (2 -RRB-) (2 (2 is) (2 1\/2)))",
    "(0 (1 (2 Not) (4 good)) (2 -LRB-))",
    "(3 (2 It) (4 (2 's) (4 good)))",
]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "sst" / "trees").mkdir(parents=True)
    for part, lines in (("train", TREES), ("dev", TREES[:3]), ("test", TREES[1:3])):
        (tmp_path / "sst" / "trees" / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_training_has_each_phrase_once_and_evaluation_the_roots(root):
    data = load_data("sst5", root, counts=None)
    train = dict(zip(data.train.text, data.train.labels.tolist(), strict=True))
    assert len(data.train) == len(train) == 14
    assert list(train.items())[:5] == [("It", 2), ("'s", 2), ("good", 4), ("'s good", 4), ("It 's good", 3)]
    assert data.train.info["root"].tolist()[:5] == [False] * 4 + [True]
    assert data.train.info["root"].sum() == 3
    assert data.validation.text == ("It 's good", ") is 1/2", "Not good (")
    assert data.test.labels.tolist() == [2, 0]
    assert "phrases, 5 classes" in describe(data)


def test_roots_alone_keep_repeated_sentences_and_are_counted(root):
    data = load_data("sst5", root, phrases=False, counts=(4, 3, 2))
    assert data.train.labels.tolist() == [3, 2, 0, 3]
    with pytest.raises(ValueError, match=r"train.txt: expected 8,544 trees, found 4"):  # cut between trees
        load_data("sst5", root)


def test_binary_drops_the_neutral(root):
    data = load_data("sst2", root, counts=None)
    assert dict(zip(data.train.text, data.train.labels.tolist(), strict=True)) == {
        "good": 1, "'s good": 1, "It 's good": 1, "Not good": 0, "Not good (": 0,
    }  # fmt: skip
    assert data.validation.labels.tolist() == [1, 0]
    assert data.test.text == ("Not good (",)
    assert (data.classes, data.class_names) == (2, ("negative", "positive"))


@pytest.mark.parametrize(("line", "expected"), [
    ("(3 (2 It) (4 (2 's", "a closed tree in line 2, found 3 open nodes"),
    ("(5 good)", "labels 0 to 4 over words in line 2, found 5"),
    ("(2)", "labels 0 to 4 over words in line 2, found 2"),
    ("good", r"'\(LABEL' in line 2, found 'good'"),
    ("(2 good) (2 bad)", "one tree .* in line 2"),
    ("(good)", "in line 2"),
])  # fmt: skip
def test_damaged_tree_is_refused(root, line, expected):
    path = root / "sst" / "trees" / "dev.txt"
    path.write_text(f"{TREES[0]}\n{line}\n")
    with pytest.raises(ValueError, match=rf"dev.txt: expected .*{expected}"):
        load_data("sst5", root, counts=None)


@pytest.mark.data
def test_published_files(real_root):
    roots = load_data("sst5", real_root, phrases=False)
    assert [len(s) for s in (roots.train, roots.validation, roots.test)] == [8_544, 1_101, 2_210]
    binary = load_data("sst2", real_root, phrases=False)
    assert [len(s) for s in (binary.train, binary.validation, binary.test)] == [6_920, 872, 1_821]
    train = load_data("sst5", real_root).train
    assert len(train) == len(set(train.text)) == 159_274  # of 318,582 labelled nodes; no phrase has two labels
