"""Tables of what iterations are worth: intervals by hand, plain words where there is no gain; and what it runs on."""

import json
import tomllib
from pathlib import Path

import pytest

from docs import numbers
from flashcaps.routing.checks import OLDEST_TORCH
from tests.tools.test_results import add, result

ONE = {0: 10.0, 1: 11.0, 2: 12.0}


def write(folder: Path, iterations: int, errors: dict[int, float], more: str = "") -> None:
    for seed, value in errors.items():
        counts = {"examples": 200, "righted": 4 * seed, "spoiled": 1}
        overrides = f"model.iterations={iterations} {more}".strip()
        add(folder, result("pairs_em", value, seed, overrides, metric="test_error_percent", routing=counts))


def test_iterations_are_compared_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "RESULTS", tmp_path)
    assert numbers.pairs("pairs_em").startswith("Not measured yet")
    write(tmp_path, 1, ONE)
    write(tmp_path, 2, {0: 9.0, 1: 10.5, 2: 12.5})  # less by 1, 0.5 and -0.5
    write(tmp_path, 3, {0: 8.0, 1: 9.0, 2: 9.9})  # by 2, 2 and 2.1
    write(tmp_path, 3, ONE, "lr=1")  # another network
    first, _, one, two, three, _, verdict = numbers.pairs("pairs_em").splitlines()
    assert first.count("|") == one.count("|") == 7
    assert "| 0.33 (-1.56 to 2.23) |" in two  # 4.303 x 0.7638 / sqrt(3) either side
    assert "| 2.03 (1.89 to 2.18) |" in three  # 4.303 x 0.0577 / sqrt(3)
    assert three.endswith("| 2.00 % | 0.50 % |")  # 0, 4 and 8 of 200; 1 of 200
    assert verdict == "By more than the interval: 2 iterations do not beat one; 3 iterations beat one."


def test_capsules_are_ahead_level_or_behind_by_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of 0.3 and 0.4 are 0.5 together."""
    monkeypatch.setattr(numbers, "RESULTS", tmp_path)
    rows = [f'[[table.row]]\nname = "{name}"\nruns = ["{recipe}"]\nagainst = "{rival}"'
            for name, recipe, rival in (("CNN", "cnn_mnist", ""), ("capsules", "capsnet_mnist_norec", "CNN"))]
    head = '[[table]]\npaper = "Dynamic"\ntitle = "MNIST"\nprotocol = ""'
    (tmp_path / "tables.toml").write_text("\n".join([head, *rows]))
    for value, said in ((1.4, "| +0.60 | ahead |"), (1.6, "| +0.40 | level |"), (2.6, "| -0.60 | behind |")):
        for name, error, half, size in (("cnn_mnist", 2.0, 0.3, 35_445_522),
                                        ("capsnet_mnist_norec", value, 0.4, 6_804_384)):  # fmt: skip
            add(tmp_path, result(name, error, metric="test_error_percent", interval=[error - half, error + half],
                                 parameters=size))  # fmt: skip
        row = numbers.rivals_met().splitlines()[-1]
        assert row == f"| MNIST, % wrong | capsules (6,804,384) | {value:.2f} | CNN (35,445,522) | 2.00 {said}"


def test_what_is_installed_is_what_was_tested() -> None:
    """pip takes the versions of Python, and the oldest PyTorch, with which all tests passed."""
    project = tomllib.loads((numbers.ROOT / "pyproject.toml").read_text())["project"]
    said = numbers.tested()
    named = [x.rpartition(" ")[2] for x in project["classifiers"] if x.startswith("Programming Language :: Python ::")]
    assert sorted(named) == sorted({word for k in range(11, 20) if f"Python {(word := f'3.{k}')} and" in said})
    assert project["requires-python"] == ">=3.11"  # a later Python may do: its tests have just not run
    runs = json.loads((numbers.RESULTS / "versions.json").read_text())
    assert not [run["command"] for run in runs if "tests/" in run["command"]]  # of the whole suite
    oldest = ".".join(map(str, OLDEST_TORCH))
    assert f"PyTorch {oldest}" in said
    assert f"torch>={oldest},<3" in project["dependencies"]


def test_a_run_that_failed_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [{"commit": f"{k}34567890ab", "versions": {"python": f"3.{k}.1", "torch": "2.12.0+cpu"},
             "outcomes": {"passed": 9, name: 1}}
            for k, name in ((11, "skipped"), (12, "failed"), (13, "error"))]  # fmt: skip
    (tmp_path / "versions.json").write_text(json.dumps(runs))
    (tmp_path / "gpu_tests.json").write_text(json.dumps(runs[1]))
    monkeypatch.setattr(numbers, "RESULTS", tmp_path)
    assert numbers.tested().endswith("on CPUs with Python 3.11 and PyTorch 2.12 (commit 1134567); on GPUs with .")
