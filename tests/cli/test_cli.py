"""The command line: examples, errors in one line, exit codes, completion in the shell."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.analysis import FIGURES
from flashcaps.cli import COMMANDS, lists, main
from flashcaps.cli.common import run_names
from flashcaps.models import list_models
from flashcaps.training import environment as checks
from flashcaps.training import loader as sources
from flashcaps.training.recipe import list_recipes

from ..fake_data import SMALL_TOML, fake_load_data, write_idx
from ..own_pictures import save_own, write_pictures


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sources, "load_data", fake_load_data)
    path = tmp_path / "small.toml"
    path.write_text(SMALL_TOML)
    return str(path)


def test_alone_it_shows_five_examples(say: Any) -> None:
    said = say().done()
    lines = [line for line in said.out.splitlines() if line.startswith("  flashcaps ")]
    assert len(lines) == 5
    assert "--install-completion" in say("--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(say: Any, command: str) -> None:
    said = say(command, "--help").done()
    assert [line for line in said.out.splitlines() if "flashcaps " in line and "Usage:" not in line]


@pytest.mark.parametrize(("command", "names"), [("models", list_models()), ("recipes", list_recipes())])
def test_a_small_terminal_shows_every_name_whole(
    say: Any, monkeypatch: pytest.MonkeyPatch, command: str, names: list[str]
) -> None:
    monkeypatch.setattr(lists.console, "width", 80)
    said = say(command)
    assert set(names) <= set(said.out.split())
    assert len(said.out.splitlines()) < 60
    assert max(map(len, said.out.splitlines())) <= 80
    said = say(command, "*")
    assert set(names) <= set(said.out.split())
    rows = [json.loads(line) for line in say(command, "--json").out.splitlines()]
    assert [row["name"] for row in rows] == names


def test_models_and_recipes_are_described(say: Any) -> None:
    assert "8,215,568" in say("models").out
    assert "0.25 % error" in say("recipes", "capsnet*").out
    assert tomllib.loads(say("recipes", "tiny").out)["model"]["name"] == "capsnet_tiny"
    assert say("--version").out == f"flashcaps {flashcaps.__version__}\n"
    said = say("models", "attention_diverse")
    assert "attention_diverse_vector" in said.out
    assert "capsnet" not in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "capsnet_mnits"), "did you mean 'capsnet_mnist'"),
        (("train", "tiny", "epoch=3"), "did you mean 'epochs'"),
        (("train", "tiny", "--device", "gpu"), "device: expected auto, cpu, cuda"),
        (("train", "tiny", "--device", "mps"), "got 'mps', on which nothing is tested"),
        (("train", "capsnet_mnist", "--data", "/nowhere"), "flashcaps data mnist"),
        (("train", "heinsen_sst5", "--data", "/nowhere"), "flashcaps data sst5"),
        (("evaluate", "nowhere"), "neither a run folder, a weights file nor a shipped name"),
        (("data", "mnits"), "did you mean 'mnist'"),
        (("models", "zzz"), "no model matches 'zzz'"),
        (("recipes", "zzz"), "no recipe matches 'zzz'"),
        (("trian", "tiny"), "did you mean 'train'"),
        (("train", "tiny", "--sede", "3"), "--seed"),
        (("evaluate", "nowhere", "--weights", "lats"), "did you mean 'last'"),
        (("models", "capsnet_mnits"), "did you mean 'capsnet_mnist'"),
        (("recipes", "capsnet_mnits"), "did you mean 'capsnet_mnist'"),
        (("train", "--images", ".", "--routing", "dynamo"), "did you mean 'dynamic'"),
        (("export", "nowhere", "--to", "onx"), "did you mean 'onnx'"),
        (("train",), "recipe"),
        (("train", "tiny", "--out", ""), "--out: expected a folder for the run, got an empty name"),
        (("train", "tiny", "--out", "file/run"), "--out: expected a folder for the run, got a file, file"),
        (("evaluate", "nowhere", "--batch", "0"), "see flashcaps evaluate --help"),
        (("predict", "demo_dynamic", "x.png", "--top", "0"), "'--top'"),
        (("predict", "demo_dynamic", "x.png", "--reconstruct", "file"), "--reconstruct: expected a folder, got a file"),
        (("figures", "demo_dynamic", "margins"), "did you mean 'margin'"),
        (("figures", "nowhere"), "neither a run folder, a weights file nor a shipped name"),
        (("figures", "demo_dynamic", "--out", "file"), "--out: expected a folder, got a file, file"),
    ],
)
def test_errors_are_one_line_and_say_what_to_do(
    say: Any, arguments: tuple[str, ...], message: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Path("file").touch()
    said = say(*arguments)
    assert said.code in (1, 2)
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert said.out.strip("\n") or not said.out  # no empty line, of a bar that never was
    assert message.lower() in said.err.lower()
    assert "Traceback" not in said.out + said.err


def test_unforeseen_errors_are_named_and_can_be_traced(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "compare_backends", lambda *_: 1 / 0)
    said = say("checks", "--device", "cpu")
    assert said.code == 1
    assert "ZeroDivisionError: division by zero" in said.err
    assert "FLASHCAPS_TRACEBACK=1" in said.err
    monkeypatch.setenv("FLASHCAPS_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["checks", "--device", "cpu"])


def test_train_evaluate_and_table(say: Any, recipe: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    said = say("train", recipe, "epochs=2", "--seed", "3", "--device", "cpu", "--out", out).done()
    for word in ("epoch 2: validation error", "test", "curve.png", "reconstructions.png", f"flashcaps evaluate {out}"):
        assert word in said.out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["seed"] == 3
    assert result["command"] == f"flashcaps train {recipe} epochs=2 --seed 3 --device cpu --out {out}"

    said = say("evaluate", out, "--device", "cpu", "--json")
    evaluation = json.loads(said.out)
    assert round(evaluation["error"], 4) == result["value"]
    assert sum(map(sum, evaluation["confusion"])) == 40
    said = say("evaluate", out, "--device", "cpu", "--split", "validation", "--weights", "last")
    assert "of 16" in said.out
    said = say("evaluate", out, "--device", "cpu", "--split", "tests")
    assert said.code == 1


def test_a_recipe_is_printed_with_its_overrides(say: Any, here: Path) -> None:
    printed = say("train", "tiny", "epochs=7", "--seed", "5", "--print").out
    fields = tomllib.loads(printed)
    assert (fields["train"]["epochs"], fields["train"]["seed"]) == (7, 5)
    assert not list(here.iterdir())
    Path("again.toml").write_text(printed)
    assert say("train", "again.toml", "--print").out == printed


def test_names_with_spaces_are_quoted_and_nothing_else_is_written(
    say: Any, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's results/README.md stays; all that is new lies in the folder given."""
    import matplotlib.font_manager  # noqa: F401  # whose cache of fonts goes to the real HOME

    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    said = say("train", recipe, "steps=2", "--device", "cpu", "--out", "my run").done()
    next_lines = [line.removeprefix("next:").strip() for line in said.out.splitlines()[-3:]]
    assert shlex.split(next_lines[0]) == ["flashcaps", "evaluate", "my run"]
    assert shlex.split(next_lines[2])[2] == 'import flashcaps; print(flashcaps.load("my run"))'
    for words in (("evaluate", "my run", "--routing"), ("export", "my run", "--to", "safetensors"),
                  ("figures", "my run", "margin"), ("recipes",), ("models",)):
        said = say(*words).done()
    assert {path.name for path in tmp_path.iterdir()} == {"my run", "results", Path(recipe).name}
    assert [path.read_text() for path in (tmp_path / "results").iterdir()] == ["mine"]


def test_pictures_that_came_later_are_told(say: Any, tmp_path: Path) -> None:
    """Others are held out then, some of which were trained on, as after a renaming; of another folder, none were."""
    folder = write_pictures(tmp_path / "shapes", 30, 12, 12)
    weights = save_own(tmp_path / "last.safetensors", folder)
    assert say("evaluate", str(weights)).err == ""
    (folder / "bar" / "0000.png").rename(folder / "bar" / "9999.png")
    assert "others are held out now" in say("evaluate", str(weights)).err
    write_pictures(folder, 33, 12, 12)
    said = say("evaluate", str(weights)).done()
    assert said.err == f"warning: {said.err.removeprefix('warning: ').rstrip()}\n"
    assert f"{folder}: these are not the examples, in the order, that the model was trained with" in said.err
    assert say("evaluate", str(weights), f"data.path={folder}").err == ""


def test_several_labels_are_counted_together(say: Any, recipe: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    overrides = ("data.name=multimnist", "data.test=50", "augment.shift=0", "steps=3", "model.image=[1, 36, 36]")
    said = say("train", recipe, *overrides, "--device", "cpu", "--out", out).done()
    assert "exact match" in said.out
    said = say("evaluate", out, "--device", "cpu")
    assert "precision" in said.out
    assert len([line for line in said.out.splitlines() if re.match(r" *\d  .* % .* % .* %$", line)]) == 10


def test_data_is_taken_from_a_folder_only_if_it_is_the_published(say: Any, tmp_path: Path) -> None:
    source = write_idx(tmp_path / "mine")
    said = say("data", "mnist", "--from", str(source), "--data", str(tmp_path / "root"))
    assert said.code == 1
    assert said.err.startswith("error: ")
    assert not list((tmp_path / "root").rglob("*ubyte*"))
    said = say("data", "digits", "--data", str(tmp_path)).done()
    assert "4,000" in said.out


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What bash would be told for the last of some words."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["flashcaps"])
        monkeypatch.setenv("_FLASHCAPS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("flashcaps", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out.split()

    return ask


def test_names_of_all_kinds(offered: Callable[..., list[str]]) -> None:
    assert offered("fig") == ["figures"]
    assert "capsnet_mnist_fast" in offered("train", "capsnet_mn")
    assert offered("train", "zzz") == []
    assert offered("models", "em_resnet") == ["em_resnet_cifar10", "em_resnet_cifar100"]
    assert offered("data", "fash") == ["fashion_mnist"]
    assert offered("figures", "runs/tiny-0", "") == list(FIGURES)
    assert offered("train", "--routing", "he") == ["heinsen"]
    assert set(offered("evaluate", "x", "--weights", "")) == {"ema", "last", "best"}


def test_run_folders_that_are_here(here: Path, offered: Callable[..., list[str]]) -> None:
    for name in ("tiny-0", "tiny-1", "empty"):
        (here / "runs" / name).mkdir(parents=True)
        if name != "empty":
            (here / "runs" / name / "config.json").write_text("{}")
    for name in ("mine.safetensors", "small.safetensors.xz", ".other.safetensors.part"):
        (here / name).write_bytes(b"")
    assert run_names("") == ["runs/tiny-0", "runs/tiny-1", "mine.safetensors", "small.safetensors.xz"]
    assert offered("predict", "runs/tiny-1") == ["runs/tiny-1"]
