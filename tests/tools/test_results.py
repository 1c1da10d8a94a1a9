"""Stored results and the pages made from them: the first table byte for byte, and runs that break its protocol."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from docs import numbers
from flashcaps.training.recipe import list_recipes, read_recipe
from tools import results as module
from tools.results import RESULTS, make_attempts, make_page
from tools.runs import Group, add_result, as_metric, chance, gain, grouped, is_full, plain_command, read_groups
from tools.tables import Table, breaches, fill, find_runs, lead, make_section, match, read_tables, rivals

TABLES = """
[[table]]
paper = "Attention (2020)"
title = "Table 1"
protocol = "Two sets."
columns = ["CIFAR-10", "CIFAR-100"]
turn = 1
epochs = 35
paper_epochs = 350
paper_select = "test"
seeds = 2
[[table.row]]
name = "capsules"
runs = ["attention_simple_cifar10 lr=0.1", ""]
overrides = "select=last"
against = "CNN"
readme = [0]
[[table.row]]
name = "CNN"
runs = ["cnn_cifar10", "cnn_cifar100"]
overrides = "select=last"
seeds = 1

[[table]]
paper = "Attention (2020)"
title = "Views"
protocol = "Toys."
matched = ["familiar ones", "novel ones"]
also = ["tiny"]
[[table.row]]
name = "em"
runs = ["em_views_azimuth"]
against = "CNN"
[[table.row]]
name = "CNN"
runs = ["cnn_views_azimuth"]

[[table]]
paper = "Dynamic (2017)"
title = "MNIST"
protocol = ""
[[table.row]]
name = "capsules"
runs = ["capsnet_mnist_norec"]
"""


PARAMETERS = {"attention_simple_cifar10": 561_297, "cnn_cifar10": 18_919_434, "cnn_cifar100": 19_011_684,
              "em_views_azimuth": 317_524, "cnn_views_azimuth": 278_949, "capsnet_mnist_norec": 6_804_384}  # fmt: skip


def result(recipe: str, value: float, seed: int = 0, overrides: str = "", **more: Any) -> dict[str, Any]:
    return {"recipe": recipe, "variant": overrides.replace(" ", ",") or "default", "seed": seed, "split": "test",
            "overrides": overrides.split(), "metric": "test_accuracy_percent", "value": value, "commit": "abc123",
            "interval": [value - 0.5, value + 0.5], "parameters": PARAMETERS.get(recipe, 9), "epochs": 350.0,
            "images": 1_285_120, "wall_s": 100.4, "hardware": "H200", "curve": [], **more}  # fmt: skip


def curve(*points: tuple[float, float]) -> dict[str, Any]:
    return {"epochs": 40.0, "curve": [{"error": e, "test_error": t, "split": "validation"} for e, t in points]}


def add(folder: Path, *runs: dict[str, Any]) -> None:
    for run in runs:
        path = folder.parent / "run.json"
        path.write_text(json.dumps(run))
        add_result(path, folder)


@pytest.fixture
def folder(folder: Path) -> Path:
    add(folder, result("attention_simple_cifar10", 85.0, overrides="select=last lr=0.10"),
        result("attention_simple_cifar10", 86.0, 1, "select=last lr=0.10"),
        result("cnn_cifar10", 80.0, overrides="select=last", epochs=35.0, beside="others"))  # fmt: skip
    return folder


def section(folder: Path, number: int = 0) -> str:
    return make_section(read_tables(folder)[number], read_groups(folder))


def test_a_table_byte_for_byte(folder: Path) -> None:
    assert section(folder) == """### Table 1

Two sets. Every run: at least 35 epochs (the paper: 350 epochs); 1 or 2 seeds; the final weights are tested; one view of each test example.

| % right, ours (and the paper's) | CIFAR-10 | CIFAR-100 |
| --- | --- | --- |
| capsules | 85.50 (85.17) |  |
| CNN | 80.00 (87.1) | not run (62.3) |

|  | the paper's | ours, % right | epochs | parameters | training time | ms per step | runs |
| --- | --- | --- | --- | --- | --- | --- | --- |
| capsules, CIFAR-10 | 85.17 (best test epoch) | **85.50 ± 0.71 (2 seeds)** | 350 | 561,297 | 1 min 40 s | 10.00 | [`attention_simple_cifar10`](runs/attention_simple_cifar10/select=last,lr=0.10-0.json), [1](runs/attention_simple_cifar10/select=last,lr=0.10-1.json) |
| CNN, CIFAR-10 | 87.1 (best test epoch) | 80.00 (79.50 to 80.50) | 35 | 18,919,434 | 1 min 40 s (shared) | 10.00 | [`cnn_cifar10`](runs/cnn_cifar10/select=last-0.json) |

<details><summary>Commands</summary><pre>
flashcaps train attention_simple_cifar10 lr=0.1 select=last  # seeds 0, 1; H200 at abc123
flashcaps train cnn_cifar10 select=last  # seed 0; H200 at abc123
flashcaps train cnn_cifar100 select=last  # not run yet
</pre></details>"""  # noqa: E501


PLANTED = {
    "8 epochs": {"epochs": 8.0},
    "34.9 epochs": {"epochs": 34.9},
    "1 of 2 seeds": {"seed": 0},
    "weights chosen on test data": {"split": "test, best epoch chosen on it"},
    "2 views of a test image": {"overrides": ["mirror=true", "select=last"]},
    "10 views of a test image": {"overrides": ["select=last", "mirror=true", "nudge=1"]},
    "weights chosen on validation data": {"overrides": ["select=validation"]},
    "an earlier version (it had no bias)": {"earlier": "it had no bias"},
    "today's network has 561,297 parameters": {"parameters": 561_296},
}


@pytest.mark.parametrize("said", PLANTED)
def test_a_run_that_breaks_the_protocol_is_kept_out_and_says_why(folder: Path, said: str) -> None:
    first, second = sorted((folder / "runs" / "attention_simple_cifar10").glob("*.json"))
    assert "| capsules | 85.50 (85.17) |" in section(folder)
    first.write_text(json.dumps(json.loads(first.read_text()) | PLANTED[said]))
    if "seeds" in said:
        second.unlink()
    assert "| capsules | not run (85.17) |" in section(folder)
    assert f"| {said} |" in make_attempts(folder)


def test_without_a_number_of_epochs_the_whole_recipe_counts(folder: Path) -> None:
    table = read_tables(folder)[1]
    run = result("em_views_azimuth", 9.0, **curve(*[(5, 30)] * 8)) | {"epochs": 39.0}
    assert breaches(table, table.row[0], [run]) == ["39 epochs"]
    assert breaches(table, table.row[0], [run | {"epochs": 40.0}]) == []
    short = run | {"epochs": 40.0, "curve": run["curve"][1:]}
    assert breaches(table, table.row[0], [short]) == ["no test error at evaluations"]
    affnist, pairs = read_recipe("capsnet_affnist_style"), read_recipe("pairs_em")
    assert is_full(affnist, [{"validation_error_percent": 0.77, "epochs": 3}])  # it stopped where the recipe says
    assert not is_full(affnist, [{"validation_error_percent": 0.78, "epochs": 3}])
    assert [is_full(pairs, [{"images": n}]) for n in (12_000 * 256, 12_000 * 256 - 1)] == [True, False]


def test_networks_are_compared_at_one_error_on_familiar_data(folder: Path) -> None:
    """Eight evaluations, at e times the level and at a part of e of it: the line's value is their mean."""
    far, near = 4.0 * math.e, 4.0 / math.e
    noisy = curve((90, 99), *((far, y) for y in (19, 21, 19, 21)), *((near, y) for y in (9, 11, 9, 11)))
    smooth = curve(*((4.0 * math.exp(x), 30 + 2 * x) for x in (1, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.0)))
    level, own, other = match(noisy, smooth)
    assert level == 4.0  # the larger of the last two
    assert own == pytest.approx((15.0, 2.447 / 6**0.5))  # residuals of 1: a variance of 8 / 6, of the mean 1 / 6
    assert other == pytest.approx((30.0, 0.0), abs=1e-6)
    assert "| em | 13.5 on smallNORB | not run yet |" in section(folder, 1)
    add(folder, result("em_views_azimuth", 69.0, **noisy), result("cnn_views_azimuth", 75.0, **smooth))
    text = section(folder, 1)
    assert "| em | 13.5 on smallNORB | 1.47 | 11.00 | 4.00 | 15.00 ± 1.00 | CNN | 30.00 ± 0.00 | 40 |" in text
    assert "| CNN | 20 on smallNORB | 4.00 | 30.00 |  |  |  |  | 40 |" in text
    assert "\nem: 90.00 99.00, 10.87 19.00, 10.87 21.00," in text
    table = read_tables(folder)[1]
    [(cell, rival)] = rivals(fill(table, read_groups(folder)))
    assert (cell.row.name, rival.row.name) == ("em", "CNN")
    assert cell.runs[0]["value"] == 31.0  # as an error
    found = lead(table, cell, rival)
    assert found[:3] == pytest.approx((15.0, 30.0, 15.0))
    assert (found.half, found.verdict) == (pytest.approx(math.hypot(0.5, 0.5, 2.447 / 6**0.5)), "ahead")


def test_models_together_have_a_cell_of_their_own(folder: Path) -> None:
    table = read_tables(folder)[0]
    one = result("attention_simple_cifar10", 85.0, overrides="select=last")
    both = one | {"variant": "ensemble=2", "members": [{}, {}], "parameters": 2 * one["parameters"]}
    groups = grouped([one, both])
    assert find_runs("attention_simple_cifar10 select=last", groups) == [one]
    assert find_runs("attention_simple_cifar10 ensemble=2 select=last", groups) == [both]
    assert breaches(table, table.row[1], [both]) == []


def test_pages_hold_every_finished_run_once_and_come_out_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="only a finished run has one"):
        add_result(folder.parent / "no_run", folder)
    with pytest.raises(ValueError, match="expected a whole run, got a trial of a few steps; train it without --dev"):
        add(folder, result("tiny", 9.0, command="flashcaps train tiny --device cpu --dev"))
    add(folder, result("attention_simple_cifar10", 70.0, overrides="select=last epochs=8", epochs=8.0),
        result("tiny", 2.0, metric="test_error_percent"), result("gone", 1.0))  # fmt: skip
    monkeypatch.setattr(module, "RESULTS", folder)
    monkeypatch.setattr(module, "make_shipped", lambda: "")
    monkeypatch.setattr("sys.argv", ["tools.results", str(folder.parent / "run.json")])
    module.main()
    pages = [(folder / name).read_text() for name in ("README.md", "attempts.md")]
    assert pages == [make_page(folder), make_attempts(folder)]
    assert "Runs in other settings: [1](attempts.md#attention-2020-table-1)" in pages[0]
    assert "| select=last epochs=8 | 70.00 (69.50 to 70.50) right | 8 |" in pages[1]
    parts = pages[1].split("\n## ")
    titles = ["Attention (2020): Table 1", "Attention (2020): Views", "Other runs"]
    assert [part.splitlines()[0] for part in parts[1:]] == titles
    files = {str(path.relative_to(folder)) for path in folder.glob("runs/*/*.json")}
    assert sorted(linked(pages[0]) + linked(pages[1])) == sorted(files)


def linked(page: str) -> list[str]:
    return [unquote(path) for path in re.findall(r"\]\((runs/[^)]+)\)", page)]


def test_the_summary_has_full_schedules_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "RESULTS", folder)
    assert numbers.summary().splitlines()[2:] == [
        "| attention, Table 1 | capsules, CIFAR-10, % right | 85.17 (best test epoch) | **85.50 ± 0.71 (2 seeds)** "
        "| 350 | [`attention_simple_cifar10`](results/runs/attention_simple_cifar10/select=last,lr=0.10-0.json), "
        "[1](results/runs/attention_simple_cifar10/select=last,lr=0.10-1.json) |"
    ]
    for seed in (0, 1):
        add(folder, result("attention_simple_cifar10", 85.0, seed, "select=last lr=0.10", epochs=349.0))
    assert "85.00 (85.17)" in section(folder)
    assert len(numbers.summary().splitlines()) == 2


def test_trials_are_listed_by_what_was_held_out(folder: Path) -> None:
    assert "## Trials" not in make_attempts(folder)
    (folder / "trials").mkdir()
    held = [{"error": 9.0}, {"error": 8.151}]
    for name, more in {
        "a": {"overrides": ["data.validation=5000", "lr=0.2", "seed=0", "epochs=3"], "curve": held, "epochs": 3.0},
        "b": {"overrides": ["data.validation=5000"], "curve": [{"error": 7.0}], "epochs": 40.0},
        "unheld": {"overrides": ["lr=0.3"], "curve": [], "epochs": 3.0},
    }.items():
        (folder / "trials" / f"{name}.json").write_text(json.dumps(result("capsnet_mnist", 50.0) | more))
    (folder / "trials" / "other.json").write_text("{}")
    assert make_attempts(folder).splitlines()[-2:] == [
        "| `capsnet_mnist` | nothing | 5,000 | 40 | 7.00 |",
        "| `capsnet_mnist` | lr=0.2 | 5,000 | 3 | 8.15 |",
    ]


def test_numbers_of_several_runs() -> None:
    [error] = as_metric([result("tiny", 98.0)], "test_error_percent")
    assert (error["value"], error["interval"]) == (2.0, [1.5, 2.5])
    less = gain([result("a", 10.0), result("a", 11.0, 1)], [result("b", 8.0, 1), result("b", 9.0)])
    assert less == pytest.approx((2.0, 2 - 12.706, 2 + 12.706))  # by 1 and 3: their deviation is the root of two
    assert chance([result("a", 10.0)]) == 0.5
    assert chance([result("a", 10.0), result("a", 12.0, 1)]) == pytest.approx((0.25 + 1.96**2) ** 0.5)


def test_commands_lose_the_folders_of_their_machine() -> None:
    command = ["flashcaps", "train", "tiny", "milestones=[1, 2]", "--out", "my runs/a b", "--data", "/x", "--seed", "1"]
    assert plain_command(shlex.join(command)) == "flashcaps train tiny 'milestones=[1, 2]' --seed 1"


HERE = read_tables(RESULTS)


@pytest.mark.parametrize("table", HERE, ids=lambda table: table.title)
def test_the_tables_here_say_what_they_keep_to(table: Table) -> None:
    """Recipes exist, rows fit the columns, and a paper that chose on test data is said to have."""
    assert table.recipes <= {*list_recipes()}
    assert [other.title for other in HERE].count(table.title) == 1  # goals name it
    assert table.epochs >= table.paper_epochs / 10 or not table.epochs
    names = [row.name for row in table.row]
    for row in table.row:
        assert len(row.runs) == len(table.columns)
        assert row.against in {*names, ""} - {row.name}
        for name, *overrides in map(shlex.split, filter(None, row.specs)):
            read_recipe(name, [o for o in overrides if not o.startswith("ensemble=")])
            paper = read_recipe(name.removesuffix("_fast")).train.select
            assert (paper == "test") == (table.paper_select == "test")


def test_the_pages_here_are_of_the_files_and_no_row_breaks_its_protocol() -> None:
    """What a page links is what was run, by today's network and by what the table above it says."""
    page = (RESULTS / "README.md").read_text()
    assert page == make_page(RESULTS), "run make results"
    assert (RESULTS / "attempts.md").read_text() == make_attempts(RESULTS), "run make results"
    sections = {part.partition("\n")[0]: part for part in re.split(r"\n##+ ", page)}
    for table in HERE:
        for row in table.row:
            lines = [line for line in sections[table.title].splitlines() if line.startswith(f"| {row.name}")]
            for group in filter(None, map(linked, lines)):
                runs: Group = [json.loads((RESULTS / path).read_text()) for path in group]
                assert breaches(table, row, runs) == []
    assert len(numbers.summary().splitlines()) <= 12
