"""The queue of missing runs: what planted results leave in it; every line of ours is a command, its result taken."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.training.evaluate import Evaluation, Member
from flashcaps.training.recipe import read_recipe
from flashcaps.training.results import ensemble_result, keep, make_result
from tests.conftest import Say
from tests.tools.test_results import TABLES as OTHERS
from tests.tools.test_results import add, result
from tools.pending import make_queue
from tools.results import RESULTS
from tools.runs import read_groups
from tools.tables import fill, parameters_of, read_tables

TABLES = f"""
[[table]]
paper = "Small (2020)"
title = "Later"
protocol = ""
[[table.row]]
name = "twice"
runs = ["cnn_cifar10 select=last"]
{OTHERS}
[[table]]
paper = "Dynamic (2017)"
title = "Together"
protocol = ""
views = 2
turn = 2
[[table.row]]
name = "two models"
runs = ["capsnet_cifar10 ensemble=2"]
"""
CAPSULES = "attention_simple_cifar10-lr=0.1,select=last-{0}: attention_simple_cifar10 lr=0.1 select=last --seed {0}"
CNN = "cnn_cifar10-select=last-0: cnn_cifar10 select=last --seed 0"
CNN100 = "cnn_cifar100-select=last-0: cnn_cifar100 select=last --seed 0"
TOGETHER = ["capsnet_cifar10-0: capsnet_cifar10 --seed 0", "capsnet_cifar10-1: capsnet_cifar10 --seed 1",
            "# flashcaps evaluate runs/capsnet_cifar10-0 runs/capsnet_cifar10-1 --ensemble --keep results"]  # fmt: skip
VIEWS = [f"{kind}_views_azimuth-0: {kind}_views_azimuth --seed 0" for kind in ("em", "cnn")]
MNIST = "capsnet_mnist_norec-0: capsnet_mnist_norec --seed 0"


def capsules(seed: int, **more: Any) -> dict[str, Any]:
    return result("attention_simple_cifar10", 85.0, seed, "lr=0.1 select=last", **more)


def commands(folder: Path, *words: str) -> list[str]:
    """The queue without its times."""
    return [line.partition("  # about")[0] for line in make_queue(folder, *words)]


def test_missing_runs_come_by_turn_and_each_once(folder: Path) -> None:
    assert make_queue(folder) == [CAPSULES.format(0), CAPSULES.format(1), CNN, CNN100, *TOGETHER, *VIEWS, MNIST]
    assert make_queue(folder, "later", "DYNAMIC") == [*TOGETHER, CNN, MNIST]
    with pytest.raises(SystemExit, match="nothing: expected a part of a paper or title in"):
        make_queue(folder, "later", "nothing")


def test_a_filled_row_leaves_the_queue_and_one_that_breaks_the_protocol_stays(folder: Path) -> None:
    add(folder, capsules(1))
    assert commands(folder, "table 1") == [CAPSULES.format(0), CNN, CNN100]
    add(folder, capsules(0, epochs=34.0))
    assert commands(folder, "table 1") == [CAPSULES.format(0), CNN, CNN100]
    add(folder, capsules(0), result("cnn_cifar10", 80.0, overrides="select=last", split="test, best"))
    assert commands(folder, "table 1") == [CNN, CNN100]
    add(folder, capsules(5, earlier="it had no bias"))  # keeps the other seeds out until it is run again
    assert commands(folder, "table 1") == [CAPSULES.format(5), CNN, CNN100]


def test_models_together_are_all_trained_until_they_are_tested_as_one(folder: Path) -> None:
    """A stored result has no weights."""
    one = result("capsnet_cifar10", 20.0, parameters=parameters_of("capsnet_cifar10"))
    add(folder, one)
    assert commands(folder, "together") == TOGETHER
    add(folder, one | {"variant": "ensemble=2", "members": [{}, {}], "parameters": 2 * one["parameters"]})
    assert commands(folder, "together") == []


def test_time_is_that_of_the_same_network_scaled_to_the_schedule(folder: Path) -> None:
    """8 epochs in 80 s are 350 in 3,500. A run alone on its device, with the same batch, goes before a longer one."""
    add(folder, result("gone", 1.0))
    assert "about" not in "".join(make_queue(folder))

    def told() -> str:
        return make_queue(folder, "table 1")[0].partition("  # ")[2]

    def trained(variant: str, **more: Any) -> dict[str, Any]:
        return result("attention_simple_cifar10", 60.0, overrides=variant, epochs=8.0, images=400_000, **more)

    add(folder, trained("epochs=8 select=last", wall_s=80.0, beside="others"))
    assert told() == "about 3500 s (shared)"
    add(folder, trained("epochs=8 batch=64", wall_s=8.0), trained("epochs=8 model.iterations=1", wall_s=4.0))
    assert told() == "about 350 s"
    add(folder, trained("epochs=8", wall_s=16.0))
    assert told() == "about 700 s"
    add(folder, trained("epochs=9", wall_s=32.0) | {"images": 450_000, "epochs": 9.0, "earlier": "it had no bias"})
    assert told() == "about 700 s"


def as_run(name: str, overrides: list[str], seed: int) -> dict[str, Any]:
    """The result that a finished run writes: its schedule at an end, a point of its curve for every evaluation."""
    recipe = read_recipe(name, [*overrides, f"train.seed={seed}"])
    train, data = recipe.train, recipe.data
    steps_an_epoch = (60_000 - data.validation) // train.batch  # recipes that count steps compose MNIST's digits
    epochs = train.steps / steps_an_epoch if train.steps else float(train.epochs)
    held = data.validation or any(key.startswith("held_out") for key in data.options)
    point = {"error": 0.9} | ({"test_error": 9.0} if train.test_curve else {})
    curve = [point] * (int(epochs) // train.evaluate_every) if held or train.select == "test" else []
    return make_result(
        recipe, Evaluation(1000, 9), "H200", validation_error_percent=0.9 if held else None, weights="last",
        parameters=parameters_of(name, *recipe.overrides), epochs=round(epochs, 3), wall_s=100.0, curve=curve,
        images=train.steps * train.batch or 60_000 * train.epochs, command="flashcaps train",
    )  # fmt: skip


def test_every_line_is_a_command_and_its_result_would_be_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    """A line can be split at its spaces; seven results become one by the command behind them."""
    monkeypatch.setenv("FLASHCAPS_COMMIT", "abc123")  # git is not asked for every result
    (folder / "tables.toml").write_text((RESULTS / "tables.toml").read_text())
    lines = make_queue(folder)
    queue = [line for line in lines if not line.startswith("#")]
    assert len({line.partition(": ")[0] for line in queue}) == len(queue)
    for line in queue:
        name, _, arguments = line.partition(": ")
        words = arguments.split()
        assert words == shlex.split(arguments)
        assert not set(name) & set("/ #'\"")
        said = say("train", *words, "--print").done()
        recipe, seed = read_recipe(words[0], words[1:-2]), int(words[-1])
        printed = tomllib.loads(said.out)["train"]
        assert printed == json.loads(json.dumps(vars(recipe.train) | {"seed": seed}))
        keep(as_run(words[0], words[1:-2], seed), folder / "runs")
    together = [line for line in lines if line.startswith("#")]
    assert commands(folder) == [line for line in queue if line.startswith("capsnet_cifar10-")] + together
    members = [as_run("capsnet_cifar10", [], seed) for seed in range(7)]
    paired = [Member(read_recipe("capsnet_cifar10"), member) for member in members]
    keep(ensemble_result(paired, Evaluation(1000, 9), "flashcaps evaluate", torch.device("cpu")), folder / "runs")
    assert make_queue(folder) == []
    groups = read_groups(folder)
    assert all(cell.runs for table in read_tables(folder) for cell in fill(table, groups))
