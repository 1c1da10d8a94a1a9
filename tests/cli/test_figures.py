"""`flashcaps figures` and `flashcaps attack` as commands."""

import json
from pathlib import Path

from flashcaps.analysis import FIGURES, open_run
from flashcaps.training.checkpoint import save_weights
from flashcaps.training.recipe import read_recipe
from flashcaps.training.results import read_results
from tests.analysis.conftest import small_run
from tests.conftest import Say
from tests.fake_data import save_small, write_idx


def test_it_lists_figures_writes_those_of_a_folder_or_a_file_and_says_why_one_is_not_drawn(here, say):
    said = say("figures").done()
    assert all(name in said.out for name in FIGURES)
    model, config = small_run(2, image=(1, 28, 28), classes=10).model, {"recipe": read_recipe("tiny").to_dict()}
    save_weights(here / "run" / "last.safetensors", model, config)
    said = say("figures", "run", "margin", "segmentation", "--results", here).done()
    assert "segmentation: not drawn: " in said.out
    save_weights(here / "mine.safetensors.xz", model, config)
    assert say("figures", "mine.safetensors.xz", "margin", "--results", here).code == 0
    for folder in ("run", "mine"):
        assert {"margin.svg", "report.html"} <= {path.name for path in (here / folder / "figures").iterdir()}


def test_attack_prints_a_table_and_keeps_what_a_figure_reads(tmp_path: Path, say: Say) -> None:
    run = save_small(write_idx(tmp_path) / "small-0" / "last.safetensors").parent
    arguments = ["attack", run, "--epsilon", "0", "--epsilon", "0.1", "--steps", "2", "--examples", "10",
                 "--device", "cpu", "--data", tmp_path]  # fmt: skip
    said = say(*arguments, "--keep", tmp_path / "results").done()
    assert "accuracy on 10 images" in said.out
    (record,) = read_results(tmp_path / "results", "robustness")
    assert record["command"] == ("flashcaps attack runs/small-0 --epsilon 0 --epsilon 0.1 --steps 2 --loss gap "
                                 "--examples 10 --seed 0")
    opened = open_run(run, results=tmp_path / "results", data=str(tmp_path))
    assert opened.robustness == [record]
    assert json.loads(say(*arguments, "--json").out)["rows"] == record["rows"]


def test_the_command_of_weights_that_came_along_has_their_name(tmp_path: Path, say: Say) -> None:
    said = say("attack", "demo_dynamic", "--epsilon", "0", "--steps", "1", "--examples", "4", "--device", "cpu",
               "--data", write_idx(tmp_path), "--json")  # fmt: skip
    assert json.loads(said.out)["command"].startswith("flashcaps attack demo_dynamic --epsilon 0")
