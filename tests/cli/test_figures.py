"""`flashcaps figures` as a command."""

import typer
from typer.testing import CliRunner

from flashcaps.analysis import FIGURES
from flashcaps.cli.figures import figures
from flashcaps.training.checkpoint import save_weights
from flashcaps.training.recipe import read_recipe
from tests.analysis.conftest import small_run

app = typer.Typer()
app.command()(figures)


def test_it_lists_figures():
    result = CliRunner().invoke(app, [], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert all(name in result.output for name in FIGURES)


def test_it_writes_one_figure_and_says_why_another_is_not_drawn(tmp_path):
    model = small_run(2, image=(1, 28, 28), classes=10).model
    save_weights(tmp_path / "last.safetensors", model, {"recipe": read_recipe("tiny").to_dict(), "step": 1})
    arguments = [str(tmp_path), "margin", "segmentation", "--results", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "segmentation: not drawn: " in result.output
    assert (tmp_path / "figures" / "margin.svg").exists()
    assert (tmp_path / "figures" / "report.html").exists()


def test_figures_of_a_weights_file_lie_in_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = small_run(2, image=(1, 28, 28), classes=10).model
    save_weights(tmp_path / "mine.safetensors.xz", model, {"recipe": read_recipe("tiny").to_dict(), "step": 1})
    result = CliRunner().invoke(app, ["mine.safetensors.xz", "margin", "--results", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "mine" / "figures" / "margin.svg").exists()
