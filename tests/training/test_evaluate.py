"""Evaluation: numbers worked out by hand, of one checkpoint and of several as one model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashcaps.analysis.comparisons import facts
from flashcaps.cli.train import runs_and_overrides
from flashcaps.models.base import Output
from flashcaps.training.batches import Batch, Held
from flashcaps.training.evaluate import (
    Ensemble,
    Evaluation,
    Label,
    answers,
    confusion_text,
    evaluate,
    evaluate_as,
    is_right,
    labels_text,
    open_ensemble,
    score_threshold,
    viewed,
    views,
    wilson,
)
from flashcaps.training.loader import open_sources
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.results import read_results
from tools.results import make_attempts

from ..conftest import Say
from ..fake_data import small_recipe, write_idx


class Echo(nn.Module):
    """Answers with its input, of images with the pixels of the first row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Output:
        self.modes.append(self.training)
        return Output((images if images.ndim == 2 else images[:, 0, 0]) * self.weight, None)


def listed(scores: list[list[float]], targets: Any, rule: str = "top1") -> Held:
    """Scores and targets as examples."""
    inputs, expected = torch.tensor(scores), torch.tensor(targets)
    return Held(lambda index: Batch(inputs[index], expected[index]), len(scores), len(scores[0]), rule)


def test_error_and_confusion_by_hand() -> None:
    scores = [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.1, 0.8, 0.1]]
    model = Echo().train()
    result = evaluate(model, listed(scores, [0, 1, 1, 2, 2]), batch=2)
    assert (result.examples, result.wrong, result.error, result.accuracy) == (5, 2, 40.0, 60.0)
    assert result.confusion == ((1, 0, 0), (1, 1, 0), (0, 1, 1))  # true down, answered across
    assert not any(model.modes)
    assert model.training  # as it was


def test_two_digits_count_only_together() -> None:
    scores = [[0.9, 0.8, 0.1, 0.0], [0.9, 0.1, 0.8, 0.0], [0.1, 0.2, 0.3, 0.9]]
    targets = [[1.0, 1, 0, 0], [1.0, 1, 0, 0], [0.0, 0, 1, 1]]
    result = evaluate(Echo(), listed(scores, targets, "top2"), batch=2)
    assert result.wrong == 1
    assert result.accuracy == pytest.approx(200 / 3)
    assert (result.every_label.present, result.every_label.found) == (6, 5)
    assert result.digit_accuracy == pytest.approx(500 / 6)
    assert result.confusion == ()


def test_threshold_asks_for_exactly_the_digits_there() -> None:
    scores = [[2.0, -1, -1], [2.0, 1, -1], [-1.0, -1, -1], [3.0, 3, 3]]
    targets = [[1.0, 0, 0], [1.0, 0, 0], [0.0, 0, 1], [1.0, 1, 0]]
    result = evaluate(Echo(), listed(scores, targets, "threshold"), threshold=score_threshold("bce"))
    assert result.wrong == 3  # one too many, one missing, one too many
    assert result.labels == (Label(3, 3, 3), Label(1, 2, 1), Label(1, 1, 0))
    assert result.every_label == Label(5, 6, 4)  # two false alarms
    first, second, third = result.labels
    assert (first.precision, first.recall, first.f1) == (100, 100, 100)
    assert (second.precision, second.recall, second.f1) == (50, 100, pytest.approx(200 / 3))
    assert (third.precision, third.recall, third.f1) == (0, 0, 0)
    assert result.to_dict()["labels"][1] == {"present": 1, "answered": 2, "found": 1, "precision": 50, "recall": 100,
                                             "f1": pytest.approx(200 / 3)}
    assert labels_text(result, ("sea", "sky", "sun")).splitlines()[2].split() == [
        "sky", "1", "50.00", "%", "100.00", "%", "66.67", "%"]  # fmt: skip


def test_answers_and_rights() -> None:
    scores = torch.tensor([[0.6, 0.55, 0.1]])
    assert answers(scores, "top1").tolist() == [[True, False, False]]
    assert answers(scores, "top2").tolist() == [[True, True, False]]
    assert answers(scores, "threshold", 0.58).tolist() == [[True, False, False]]
    mixed = torch.tensor([[0.7, 0.3, 0.0]])
    assert is_right(scores, mixed, "top1").tolist() == [True]


def test_wilson_by_hand() -> None:
    # p = 0.1, n = 100, z = 1.96: centre (0.1 + 0.0192) / 1.0384, half 1.96 / 1.0384 sqrt(0.0009 + 0.000096)
    low, high = wilson(10, 100)
    assert low == pytest.approx(0.05523, abs=1e-5)
    assert high == pytest.approx(0.17437, abs=1e-5)
    assert wilson(0, 50)[0] == 0.0
    assert wilson(50, 50)[1] == 1.0
    assert wilson(0, 50)[1] == pytest.approx(1 - wilson(50, 50)[0])
    with pytest.raises(ValueError, match="count: expected 0 to total=3"):
        wilson(4, 3)
    result = Evaluation(100, 10)
    assert result.interval == result.to_dict()["interval"] == (100 * low, 100 * high)
    assert result.metric("test_error_percent") == (10, result.interval)
    assert result.metric("test_accuracy_percent") == (90, (100 - 100 * high, 100 - 100 * low))


def test_tables_for_people() -> None:
    small = confusion_text(Evaluation(3, 1, confusion=((1, 0), (1, 1))), ("cat", "dog"))
    assert small.splitlines()[1].split() == ["cat", "1", "."]
    rows = [[0] * 30 for _ in range(30)]
    rows[4][7], rows[2][3] = 9, 5
    large = confusion_text(Evaluation(14, 14, confusion=tuple(map(tuple, rows))))
    assert large == "4 taken for 7: 9\n2 taken for 3: 5"


def test_what_cannot_be_evaluated_is_an_error() -> None:
    """No examples, a model of other classes, views of texts."""
    with pytest.raises(ValueError, match="at least one example"):
        evaluate(Echo(), Held(lambda index: Batch(index, index), 0, 2, "top1"))
    for rule, targets in (("top1", [1]), ("top2", [[1, 1, 0]])):
        held = listed([[0.6, 0.5, 0.0]], targets, rule)
        for held.classes in (2, 4):
            with pytest.raises(ValueError, match=rf"^model: expected one that tells the data's {held.classes} classes"):
                evaluate(Echo(), held)
    texts = Batch(torch.zeros(1, 3), torch.zeros(1), mask=torch.ones(1, 3))
    for name, value in (("mirror", True), ("nudge", 1)):
        with pytest.raises(ValueError, match=rf"train\.{name}: expected images, got texts"):
            viewed(Echo(), texts, **{name: value})


def test_nudged_images_move_along_each_diagonal_and_lose_what_leaves() -> None:
    image = torch.arange(1.0, 10).view(1, 1, 3, 3)
    first, *moved = views(image, nudge=1)
    assert torch.equal(first, image)
    corners = [x[0, 0].tolist() for x in moved]
    assert corners[0] == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]  # down and right
    assert corners[1] == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]
    assert corners[2] == [[0, 4, 5], [0, 7, 8], [0, 0, 0]]
    assert corners[3] == [[5, 6, 0], [8, 9, 0], [0, 0, 0]]
    both = views(image, mirror=True, nudge=1)
    assert len(both) == 10
    assert torch.equal(torch.cat(both[5:]), torch.cat(both[:5]).flip(-1))
    assert [len(views(image)), len(views(image, mirror=True))] == [1, 2]
    scores = viewed(Echo(), Batch(image, torch.zeros(1)), nudge=1)  # of rows 1 2 3, twice 0 0 0, 0 4 5 and 5 6 0
    torch.testing.assert_close(scores, torch.tensor([[6.0, 12, 8]]) / 5)


@pytest.mark.parametrize(("setting", "wrong"), [("nudge=0", 2), ("mirror=true", 1), ("nudge=1", 0)])
def test_a_recipe_is_evaluated_with_its_views(setting: str, wrong: int) -> None:
    """Scores are the first row: [0.6, 0.5, 0] and its mirror image have the mean [0.3, 0.5, 0.3]; the second row, moved
    up along a diagonal, is [0, 9, 0]."""
    images, targets = torch.tensor([[[0.6, 0.5, 0], [9, 0, 9]], [[0, 0.1, 0.9], [9, 0, 9]]])[:, None], torch.ones(2)
    held = Held(lambda index: Batch(images[index], targets[index].long()), 2, 3, "top1")
    assert evaluate_as(small_recipe(setting), Echo(), held).wrong == wrong


def test_a_recipe_is_evaluated_with_the_threshold_of_its_loss() -> None:
    held = listed([[0.3, -1.0], [0.7, -1.0]], [[1.0, 0], [1.0, 0]], "threshold")
    for loss, wrong in (("margin", 1), ("spread", 1), ("bce", 0), ("cross_entropy", 0)):
        assert evaluate_as(small_recipe(f"loss.kind={loss}"), Echo(), held).wrong == wrong


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_idx(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three seeds of one recipe, a dozen steps each."""
    place = tmp_path_factory.mktemp("runs")
    folders = [place / f"small-{seed}" for seed in range(3)]
    for seed, folder in enumerate(folders):
        train(small_recipe("steps=12", f"train.seed={seed}"), RunOptions("cpu", str(folder), str(root)))
    return [str(folder) for folder in folders]


def test_scores_are_the_mean_of_the_members() -> None:
    members = [Echo(), Echo()]
    members[0].weight.data, members[1].weight.data = torch.tensor([[0.9, 0.0, 0.5], [0.0, 0.7, 0.6]])
    output = Ensemble(members)(torch.ones(1, 3))
    assert torch.allclose(output.scores, torch.tensor([[0.45, 0.35, 0.55]]))  # neither member's answer
    assert output.routed is None


def test_the_command_answers_with_the_mean_of_lengths(runs: list[str], root: Path, say: Say) -> None:
    said = say("evaluate", *runs, "--ensemble", "--data", str(root), "--device", "cpu", "--json").done()
    found = json.loads(said.out)
    model, members = open_ensemble(runs)
    assert len(members) == 3
    batch = open_sources(members[0].recipe, root, torch.device("cpu"), None).test.some(40)
    with torch.no_grad():
        lengths = torch.stack([member(batch.inputs).scores for member in model.members]).mean(0)
    assert found["wrong"] == int((lengths.argmax(1) != batch.targets).sum())
    assert found["examples"] == 40


def test_its_result_is_kept_and_gets_a_row_of_the_table(
    runs: list[str], root: Path, tmp_path: Path, say: Say
) -> None:
    words = "--ensemble", "--data", str(root), "--device", "cpu", "--keep", str(tmp_path), "--json"
    said = say("evaluate", *runs, *words).done()
    assert json.loads(said.out)["examples"] == 40
    (record,) = read_results(tmp_path)
    singles = [json.loads((Path(run) / "result.json").read_text()) for run in runs]
    assert record["variant"].endswith("steps=12,ensemble=3")
    assert record["parameters"] == 3 * singles[0]["parameters"]
    assert record["images"] == sum(single["images"] for single in singles)
    assert [m["seed"] for m in record["members"]] == [0, 1, 2]
    assert record["command"] == "flashcaps evaluate runs/small-0 runs/small-1 runs/small-2 --ensemble"
    assert {"epochs", "digit_accuracy", "interval", "split", "hardware", "versions", "commit"} <= set(record)
    assert "ensemble=3" in make_attempts(tmp_path)
    assert facts(record) is None  # figures that compare runs leave it out


def test_what_does_not_go_together_is_an_error(runs: list[str], root: Path, tmp_path: Path, say: Say) -> None:
    other = tmp_path / "other"
    train(small_recipe("steps=2", "lr=0.1", "train.seed=7"), RunOptions("cpu", str(other), str(root)))
    with pytest.raises(ValueError, match="runs of one recipe that differ in their seed alone"):
        open_ensemble([runs[0], str(other)])
    with pytest.raises(ValueError, match="different seeds, got one twice"):
        open_ensemble([runs[0], runs[0]])
    common = ("--data", str(root), "--device", "cpu")
    for words, message in (
        ((*runs, *common), "go with --ensemble"),
        ((runs[0], "--keep", str(tmp_path), *common), "go with --ensemble"),
        ((*runs, "data.test=3", "--ensemble", "--keep", str(tmp_path), *common), "the recipe's own test data"),
        ((*(f"{run}/ema.safetensors" for run in runs), "--ensemble", "--keep", str(tmp_path), *common),
         "folders of finished runs"),
    ):  # fmt: skip
        assert message in say("evaluate", *words).err


def test_folders_named_after_overrides_are_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["runs/tiny-epochs=3-1", "data.name=affnist", "tiny-epochs=3-2", "epochs=3"]
    assert runs_and_overrides(words) == (["runs/tiny-epochs=3-1", "tiny-epochs=3-2"], ["data.name=affnist", "epochs=3"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "epochs=3").mkdir()
    assert runs_and_overrides(["epochs=3"]) == (["epochs=3"], [])
