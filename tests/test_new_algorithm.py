"""A new algorithm is one file and one line: the guide's is trained, evaluated, drawn and exported by its name.

That it passes lint, types and the contract tests: docs/test_write_routing.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.analysis import FIGURES, open_run
from flashcaps.analysis.cost import cost
from flashcaps.analysis.routing import agreement
from flashcaps.analysis.style import COLOURS, colour_of
from flashcaps.cli.common import algorithm_names
from flashcaps.demo.network import Description
from flashcaps.deploy.export import open_exported
from flashcaps.routing import ROUTING
from tests.conftest import Say
from tests.docs.test_guides import blocks
from tests.own_pictures import write_pictures


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    file: dict[str, Any] = {"__name__": "median"}
    exec(blocks("docs/write_routing.md")[0], file)
    monkeypatch.setitem(ROUTING, "median", file["Median"])


def test_it_goes_from_a_folder_of_pictures_to_an_exported_file(here: Path, say: Say) -> None:
    write_pictures(here / "shapes", 40, 12, 12)
    out = here / "run"
    small = ("epochs=2", "model.backbone.channels=8", "model.primary.types=2")
    assert say("train", "--images", "shapes", "--routing", "median", *small, "--device", "cpu", "--out", out).code == 0
    result = json.loads((out / "result.json").read_text())
    assert json.loads((out / "config.json").read_text())["loss"]["kind"] == "margin"
    assert round(json.loads(say("evaluate", out, "--device", "cpu", "--json").out)["error"], 4) == result["value"]

    assert say("figures", out, "margin").code == 0
    assert (out / "figures" / "margin.png").is_file()
    opened = open_run(out)
    for name in ("architecture", "parse_tree", "vote_distances", "iterations"):
        assert FIGURES[name](opened).caption
    assert set(agreement(opened, iterations=2, images=4).data) == set(ROUTING)
    assert set(cost(opened, iterations=(1, 2)).data["cost"]["median"]) == {1, 2}
    assert colour_of("median") == COLOURS[len(ROUTING) - 1]
    assert "median" in algorithm_names()

    assert say("export", out, "--to", "torch-export", "--out", here / "median.pt2").code == 0
    scores, pose = open_exported(here / "median.pt2")(torch.rand(3, 3, 12, 12))
    assert (scores.shape, pose.shape) == ((3, 3), (3, 3, 16))


def test_the_page_names_what_it_does_not_run() -> None:
    model = flashcaps.create_model("capsnet_tiny", routing="median", classes=4)
    with pytest.raises(ValueError, match=r"mine: the page does not run capsules.layers.0, which routes by 'median'"):
        Description("mine", model)
