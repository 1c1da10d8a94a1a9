"""`flashcaps attack` as a command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashcaps.analysis import open_run
from flashcaps.analysis.adversarial import read_records
from flashcaps.cli import app
from flashcaps.models import create_model
from flashcaps.training.checkpoint import save_weights
from tests.fake_data import small_recipe, write_idx


@pytest.fixture
def run(tmp_path: Path) -> Path:
    recipe = small_recipe()
    model = create_model(recipe.model.name, **recipe.model.overrides)
    save_weights(tmp_path / "small-0" / "last.safetensors", model, {"recipe": recipe.to_dict(), "step": 1})
    write_idx(tmp_path)
    return tmp_path / "small-0"


def test_it_prints_a_table_and_keeps_what_a_figure_reads(run: Path, tmp_path: Path) -> None:
    arguments = ["attack", str(run), "--epsilon", "0", "--epsilon", "0.1", "--steps", "2", "--examples", "10",
                 "--device", "cpu", "--data", str(tmp_path)]  # fmt: skip
    said = CliRunner().invoke(app, [*arguments, "--keep", str(tmp_path / "results")], env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output
    assert "accuracy on 10 images" in said.output
    (record,) = read_records(tmp_path / "results")
    assert record["command"] == ("flashcaps attack runs/small-0 --epsilon 0 --epsilon 0.1 --steps 2 --loss gap "
                                 "--examples 10 --seed 0")
    opened = open_run(run, results=tmp_path / "results", data=str(tmp_path))
    assert opened.robustness == [record]
    said = CliRunner().invoke(app, [*arguments, "--json"])
    again = json.loads(said.stdout)
    assert again["rows"] == record["rows"]


def test_the_command_of_weights_that_came_along_has_their_name(run: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["attack", "demo_dynamic", "--epsilon", "0", "--steps", "1", "--examples", "4",
                                    "--device", "cpu", "--data", str(tmp_path), "--json"])  # fmt: skip
    assert json.loads(said.stdout)["command"].startswith("flashcaps attack demo_dynamic --epsilon 0")
