"""`flashcaps figures` as a command."""

from flashcaps.analysis import FIGURES
from flashcaps.training.checkpoint import save_weights
from flashcaps.training.recipe import read_recipe
from tests.analysis.conftest import small_run


def test_it_lists_figures(say):
    said = say("figures")
    assert said.code == 0
    assert all(name in said.out for name in FIGURES)


def test_it_writes_figures_of_a_folder_or_a_file_and_says_why_one_is_not_drawn(tmp_path, monkeypatch, say):
    monkeypatch.chdir(tmp_path)
    model, config = small_run(2, image=(1, 28, 28), classes=10).model, {"recipe": read_recipe("tiny").to_dict()}
    save_weights(tmp_path / "run" / "last.safetensors", model, config)
    said = say("figures", "run", "margin", "segmentation", "--results", tmp_path)
    assert said.code == 0, said.err
    assert "segmentation: not drawn: " in said.out
    save_weights(tmp_path / "mine.safetensors.xz", model, config)
    assert say("figures", "mine.safetensors.xz", "margin", "--results", tmp_path).code == 0
    for folder in ("run", "mine"):
        assert {"margin.svg", "report.html"} <= {path.name for path in (tmp_path / folder / "figures").iterdir()}
