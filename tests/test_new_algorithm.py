"""A new algorithm is one file and one line: it is trained, evaluated, drawn and exported by its name."""

import inspect
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import flashcaps
from flashcaps.analysis import FIGURES
from flashcaps.analysis.cost import cost
from flashcaps.analysis.open_run import open_run
from flashcaps.analysis.routing import agreement
from flashcaps.analysis.style import COLOURS, colour_of
from flashcaps.cli.common import algorithm_names
from flashcaps.demo.network import Description
from flashcaps.deploy.export import open_exported
from flashcaps.routing import ROUTING, Learned, Routed, Routing, Sizes, Step
from flashcaps.routing.checks import check_votes
from flashcaps.routing.math import Softmax, compute_dtype, full_precision, length, over_parents, squash
from tests.conftest import Say
from tests.own_pictures import write_pictures
from tests.routing import test_contract as contract

# ---- the file


@full_precision
def toy_routing(
    votes: Tensor, *, gain: Tensor, iterations: int = 2, record: bool = False, softmax: Softmax = over_parents
) -> Routed:
    """c = softmax_j(cos(u_j|i, v_j)),  v_j = squash(gain_j sum_i c_ij u_j|i)"""
    b, i, j, _ = check_votes(votes)
    votes, dtype = votes.to(compute_dtype(votes)), votes.dtype
    c, history = softmax(votes.new_zeros(b, i, j)), []
    for t in range(iterations):
        v = squash(gain.to(votes.dtype)[:, None] * torch.einsum("bij,bijd->bjd", c, votes))
        history.append(Step(c, v.to(dtype)))
        if t < iterations - 1:
            c = softmax(torch.cosine_similarity(votes, v[:, None], dim=-1))
    return Routed(v.to(dtype), length(v).to(dtype), c, history=tuple(history) if record else None)


@dataclass(frozen=True)
class Toy(Routing):
    title = "Toy routing"
    function = staticmethod(toy_routing)
    output_activation = "length"
    loss = "margin"

    iterations: int = 2

    def learned(self, sizes: Sizes) -> dict[str, Learned]:
        return {"gain": Learned((sizes.parents,), start=1.0, parents=0)}


# ---- the line


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    ROUTING["toy"] = Toy
    yield
    del ROUTING["toy"]


def test_it_goes_from_a_folder_of_pictures_to_an_exported_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "shapes", 40, 12, 12)
    out = tmp_path / "run"
    small = ("epochs=2", "model.backbone.channels=8", "model.primary.types=2")
    assert say("train", "--images", "shapes", "--routing", "toy", *small, "--device", "cpu", "--out", out).code == 0
    result = json.loads((out / "result.json").read_text())
    assert json.loads((out / "config.json").read_text())["loss"]["kind"] == "margin"
    assert round(json.loads(say("evaluate", out, "--device", "cpu", "--json").out)["error"], 4) == result["value"]

    assert say("figures", out, "margin").code == 0
    assert (out / "figures" / "margin.png").is_file()
    opened = open_run(out)
    for name in ("architecture", "parse_tree", "vote_distances", "iterations"):
        assert FIGURES[name](opened).caption
    assert set(agreement(opened, iterations=2, images=4).data) == set(ROUTING)
    assert set(cost(opened, iterations=(1, 2)).data["cost"]["toy"]) == {1, 2}
    assert colour_of("toy") == COLOURS[len(ROUTING) - 1]
    assert "toy" in algorithm_names()

    assert say("export", out, "--to", "torch-export", "--out", tmp_path / "toy.pt2").code == 0
    scores, pose = open_exported(tmp_path / "toy.pt2")(torch.rand(3, 3, 12, 12))
    assert (scores.shape, pose.shape) == ((3, 3), (3, 3, 16))


def test_the_page_names_what_it_does_not_run() -> None:
    model = flashcaps.create_model("capsnet_tiny", routing="toy", classes=4)
    with pytest.raises(ValueError, match=r"mine: the page does not run capsules.layers.0, which routes by 'toy'"):
        Description("mine", model)


def test_it_passes_the_contract_tests() -> None:
    """Every test of the contract that is parametrised over algorithms, with all its other parameters."""
    counted = 0
    for name, test in vars(contract).items():
        if not name.startswith("test_") or "routing" not in inspect.signature(test).parameters:
            continue
        values = {mark.args[0]: mark.args[1] for mark in test.pytestmark if mark.name == "parametrize"}
        values["routing"] = ["toy"]
        for chosen in itertools.product(*values.values()):
            test(**dict(zip(values, chosen, strict=True)))
            counted += 1
    assert counted > 30
