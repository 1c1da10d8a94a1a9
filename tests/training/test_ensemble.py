"""Several checkpoints as one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from flashcaps.analysis.records import facts
from flashcaps.cli import app
from flashcaps.cli.train import runs_and_overrides
from flashcaps.training.ensemble import Ensemble, open_ensemble
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.results import read_results
from tools.results import make_table

from ..fake_data import small_recipe, write_idx


class Scores(NamedTuple):
    scores: Tensor


class Fixed(nn.Module):
    def __init__(self, scores: list[list[float]]) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def forward(self, inputs: Tensor) -> Scores:
        return Scores(self.scores)


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


def say(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def test_scores_are_the_mean_of_the_members() -> None:
    first, second = [[0.9, 0.0, 0.5]], [[0.0, 0.7, 0.6]]
    output = Ensemble([Fixed(first), Fixed(second)])(torch.zeros(1))
    assert torch.allclose(output.scores, torch.tensor([[0.45, 0.35, 0.55]]))  # neither member's answer
    assert output.routed is None
    with pytest.raises(ValueError, match="members: expected at least one"):
        Ensemble([])


def test_the_command_answers_with_the_mean_of_lengths(runs: list[str], root: Path) -> None:
    said = say("evaluate", *runs, "--ensemble", "--data", str(root), "--device", "cpu", "--json")
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    model, members = open_ensemble(runs)
    assert len(members) == 3
    from flashcaps.training.loader import open_sources

    batch = open_sources(members[0].recipe, root, torch.device("cpu"), None).test.some(40)
    with torch.no_grad():
        lengths = torch.stack([member(batch.inputs).scores for member in model.members]).mean(0)
    assert found["wrong"] == int((lengths.argmax(1) != batch.targets).sum())
    assert found["examples"] == 40


def test_its_result_is_kept_and_gets_a_row_of_the_table(runs: list[str], root: Path, tmp_path: Path) -> None:
    said = say("evaluate", *runs, "--ensemble", "--data", str(root), "--device", "cpu", "--keep", str(tmp_path))
    assert said.exit_code == 0, said.output
    (record,) = read_results(tmp_path)
    singles = [json.loads((Path(run) / "result.json").read_text()) for run in runs]
    assert record["variant"].endswith("steps=12,ensemble=3")
    assert record["parameters"] == 3 * singles[0]["parameters"]
    assert record["images"] == sum(single["images"] for single in singles)
    assert [m["seed"] for m in record["members"]] == [0, 1, 2]
    assert record["command"] == "flashcaps evaluate runs/small-0 runs/small-1 runs/small-2 --ensemble"
    assert {"epochs", "digit_accuracy", "interval", "split", "hardware", "versions", "commit"} <= set(record)
    assert "ensemble=3" in make_table(tmp_path)
    assert facts(record) is None  # figures that compare runs leave it out


def test_what_does_not_go_together_is_an_error(runs: list[str], root: Path, tmp_path: Path) -> None:
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
        said = say("evaluate", *words)
        assert message in str(said.exception), said.output


def test_folders_named_after_overrides_are_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["runs/tiny-epochs=3-1", "data.name=affnist", "tiny-epochs=3-2", "epochs=3"]
    assert runs_and_overrides(words) == (["runs/tiny-epochs=3-1", "tiny-epochs=3-2"], ["data.name=affnist", "epochs=3"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "epochs=3").mkdir()
    assert runs_and_overrides(["epochs=3"]) == (["epochs=3"], [])
