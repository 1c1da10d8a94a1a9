"""Result files and the table made from them, byte for byte."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from flashcaps.training import results as module
from flashcaps.training.results import add_result, best_results, commit, duration, make_table, write_table


def result(recipe: str, value: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    return {"recipe": recipe, "variant": "default", "seed": seed, "split": "test", "metric": "test_error_percent",
            "value": value, "interval": [value - 0.1, value + 0.1], "parameters": 8215568, "epochs": 100.0,
            "wall_s": 100.4, "hardware": "NVIDIA H200", **more}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "list_recipes", lambda: ["attention_simple_cifar10", "capsnet_mnist", "cnn_mnist"])
    runs = [
        result("capsnet_mnist", 0.31),
        result("capsnet_mnist", 0.27, 1),
        result("capsnet_mnist", 0.42, variant="epochs=3,ema=0"),
        result("attention_simple_cifar10", 85.5, metric="test_accuracy_percent", split="test, best epoch chosen on it",
               parameters=561297, epochs=8.0, wall_s=7325),
    ]  # fmt: skip
    for run in runs:
        path = tmp_path / "run.json"
        path.write_text(json.dumps(run))
        add_result(path, tmp_path / "results")
    return tmp_path / "results"


EXPECTED = """\
| paper | recipe | the paper's | public code's | ours | reached | parameters | training time | on |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| dynamic, Table 1 | `capsnet_mnist` | 0.25 % error | 0.34 | 0.29 ± 0.03 (2 seeds) | no | 8,215,568 | 1 min 40 s | NVIDIA H200 |
| dynamic, Table 1 | `capsnet_mnist` epochs=3 ema=0 | 0.25 % error | 0.34 | 0.42 (0.32 to 0.52) | no | 8,215,568 | 1 min 40 s | NVIDIA H200 |
| attention, Table 1 | `attention_simple_cifar10` | 85.17 % accuracy |  | 85.50 (85.40 to 85.60), best test epoch | yes | 561,297 | 2 h 02 min | NVIDIA H200 |

Not measured yet: `cnn_mnist`.
"""  # noqa: E501


SUMMARY = """\
| paper | recipe | the paper's | ours | epochs | reached |
| --- | --- | --- | --- | --- | --- |
| dynamic, Table 1 | `capsnet_mnist` | 0.25 % error | 0.29 ± 0.03 (2 seeds) | 100 | no |
| attention, Table 1 | `attention_simple_cifar10` | 85.17 % accuracy | 85.50 (85.40 to 85.60), best test epoch | 8 of 350 | yes |
"""  # noqa: E501


def test_the_table_byte_for_byte(folder: Path) -> None:
    path = write_table(folder)
    text = path.read_text()
    assert text == module.HEADER + "\n" + EXPECTED
    assert write_table(folder).read_text() == text == make_table(folder)


def test_the_readme_has_the_best_of_each_recipe(folder: Path) -> None:
    readme = folder.parent / "README.md"
    readme.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n")
    write_table(folder)
    assert readme.read_text() == f"before\n<!-- results -->\n{SUMMARY}<!-- /results -->\nafter\n"
    readme.write_text("no section")
    write_table(folder)
    assert readme.read_text() == "no section"


def test_changes_too_many_for_a_file_name_are_told_whole(folder: Path) -> None:
    path = folder / "runs" / "capsnet_mnist" / "epochs=3,ema=0-0.json"
    run = json.loads(path.read_text())
    run |= {"variant": "optimiser.kind=muon,lr=0.01,opt-0123abcd", "overrides": ["lr=0.01", "train.seed=0", "ema=0.9"]}
    path.write_text(json.dumps(run))
    assert "| `capsnet_mnist` lr=0.01 ema=0.9 |" in make_table(folder)


def test_trials_are_listed_by_what_was_held_out(folder: Path) -> None:
    assert "## Trials" not in make_table(folder)
    (folder / "trials").mkdir()
    curve = [{"error": 9.0}, {"error": 8.151}]
    for name, more in {
        "a": {"overrides": ["data.validation=5000", "lr=0.2", "seed=0", "epochs=3"], "curve": curve, "epochs": 3.0},
        "b": {"overrides": ["data.validation=5000"], "curve": [{"error": 7.0}], "epochs": 40.0},
        "unheld": {"overrides": ["lr=0.3"], "curve": [], "epochs": 3.0},
    }.items():
        (folder / "trials" / f"{name}.json").write_text(json.dumps(result("capsnet_mnist", 50.0) | more))
    (folder / "trials" / "other.json").write_text("{}")
    assert make_table(folder).splitlines()[-2:] == [
        "| `capsnet_mnist` | nothing | 5,000 | 40 | 7.00 |",
        "| `capsnet_mnist` | lr=0.2 | 5,000 | 3 | 8.15 |",
    ]


def test_files_lie_where_they_are_looked_for(folder: Path) -> None:
    names = sorted(str(p.relative_to(folder)) for p in folder.glob("runs/*/*.json"))
    assert names == ["runs/attention_simple_cifar10/default-0.json", "runs/capsnet_mnist/default-0.json",
                     "runs/capsnet_mnist/default-1.json", "runs/capsnet_mnist/epochs=3,ema=0-0.json"]  # fmt: skip


@pytest.mark.parametrize(("data", "reached"), [("synthetic_norb", ""), ("smallnorb", "yes")])
def test_a_number_on_other_data_is_told_and_not_compared_with(tmp_path: Path, data: str, reached: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(result("em_views_azimuth", 12.0, data=data)))
    add_result(path, tmp_path / "results")
    assert f"| 13.5 % error on smallNORB |  | 12.00 (11.90 to 12.10) | {reached} |" in make_table(tmp_path / "results")


def test_a_shared_device_is_told(folder: Path) -> None:
    path = folder / "runs" / "attention_simple_cifar10" / "default-0.json"
    before = make_table(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"beside": "3 trainings"}))
    told = [line for line in make_table(folder).splitlines() if "(beside) |" in line]
    assert len(told) == 1
    assert "attention_simple_cifar10" in told[0]
    assert "(beside)" not in before


def test_best_is_lowest_error_or_highest_accuracy(folder: Path) -> None:
    assert best_results(folder) == {"capsnet_mnist": "0.29 % error", "attention_simple_cifar10": "85.50 % accuracy"}
    assert best_results(folder / "nowhere") == {}


def test_wrong_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="only a finished run has one"):
        add_result(tmp_path / "no_run", folder)
    (folder / "runs" / "capsnet_mnist" / "default-0.json").write_text("{")
    with pytest.raises(ValueError, match=r"default-0\.json: not JSON"):
        make_table(folder)


def test_commit_comes_from_the_environment_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHCAPS_COMMIT", "abc123")
    assert commit() == "abc123"
    monkeypatch.delenv("FLASHCAPS_COMMIT")
    monkeypatch.setenv("PATH", "")
    assert commit() == ""


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_commands_lose_the_folders_of_their_machine() -> None:
    command = ["flashcaps", "train", "tiny", "milestones=[1, 2]", "--out", "my runs/a b", "--data", "/x", "--seed", "1"]
    assert module.plain_command(shlex.join(command)) == "flashcaps train tiny 'milestones=[1, 2]' --seed 1"
    beside = "FLASHCAPS_BESIDE='a b' flashcaps train tiny"
    assert module.plain_command(f"{beside} --out d") == beside


@pytest.mark.parametrize(("value", "reached"), [(85.17, "yes"), (85.166, "yes"), (85.16, "no")])
def test_a_number_is_reached_that_is_printed_the_same(tmp_path: Path, value: float, reached: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(result("attention_simple_cifar10", value, metric="test_accuracy_percent")))
    add_result(path, tmp_path / "results")
    row = next(line for line in make_table(tmp_path / "results").splitlines() if "| `attention_simple_cifar10`" in line)
    assert [cell.strip() for cell in row.split("|")][6] == reached
