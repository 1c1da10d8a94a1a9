"""flashcaps demo: what it builds and refuses; test_page_access.py serves it, test_installed.py calls the command."""

import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flashcaps
from flashcaps.demo import build as building
from flashcaps.demo.build import DEMO, MAGIC, network_file, pack
from flashcaps.demo.facts import MEASURED, effects_on, facts_of, names_of
from flashcaps.demo.network import OPTIONS, Description
from flashcaps.training.checkpoint import save_weights
from tests.conftest import Say
from tests.demo.page_server import IMAGES


def error_of(say: Say, *words: object) -> str:
    code, _, said = say("demo", "--no-browser", *words)
    assert (code, said[:7], said.count("\n")) == (1, "error: ", 1)
    return said


def header_of(content: bytes) -> dict[str, Any]:
    assert content[:8] == MAGIC
    return json.loads(content[16 : 16 + struct.unpack_from("<I", content, 8)[0]])


def tiny(**overrides: Any) -> Any:
    return flashcaps.create_model("capsnet_tiny", **overrides)


def test_own_networks_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "DEMO", ("demo_em",))
    for folder in (tmp_path / "a" / "run", tmp_path / "b" / "run"):
        save_weights(folder / "last.safetensors", tiny(), {})
    result = {"metric": "test_error_percent", "value": 3.5, "split": "test"}
    (tmp_path / "a" / "run" / "result.json").write_text(json.dumps(result | {"weights": "last"}))
    monkeypatch.setattr(building, "card_of", lambda *a: "card")
    site, own = tmp_path / "site", [str(tmp_path / x / "run") for x in "ab"]
    for _ in range(2):  # an earlier page is written over
        assert building.build(site, own) == ["run", "run-2", "demo_em"]
    first, second, _ = json.loads((site / "models" / "index.json").read_text())["models"]
    assert first["result"] == {"error": 3.5, "split": "test"}
    assert second["result"] is None
    assert first["title"] == "Dynamic routing: run"
    assert header_of((site / "models" / "run.caps").read_bytes())["info"] == first
    assert {path.name for path in site.iterdir()} == {"index.html", "models", "page"}


def test_what_cannot_be_served_is_refused(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = error_of(say, "--port", port)
    assert f"port {port}" in said
    assert f"--port {port + 1}" in said
    assert "runs/nothing is neither a run folder" in error_of(say, "runs/nothing", "--port", "0")
    (tmp_path / "thesis.tex").write_text("...")
    assert "holds other files" in error_of(say, "--build", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ValueError, match="x: expected finite numbers within half precision, got up to 100000"):
        pack({}, {"x": torch.tensor([1e5])})
    monkeypatch.setattr(building, "shipped_files", dict)
    assert "give a run folder" in error_of(say, "--build", tmp_path / "new")


def test_what_the_page_does_not_run_is_named(tmp_path: Path, say: Say) -> None:
    class Stem(nn.Sequential):
        pass

    conv = nn.Conv2d(1, 8, 3, 2)
    for model, message in (
        (flashcaps.create_model("cnn_mnist"), "expected a capsule network; cnn_mnist has no capsules"),
        (flashcaps.create_model("heinsen_sst2"), "expected a model of images; this one reads text"),
        (tiny(backbone=nn.Sequential(conv, nn.GELU())), "the page does not run backbone.1, GELU"),
        (tiny(backbone=Stem(conv)), "the page does not run backbone, Stem"),
        (tiny(backbone=nn.Conv2d(1, 8, 3, 2, dilation=2)), "the page does not run backbone, Conv2d"),
        (tiny(backbone=nn.Sequential(conv, nn.BatchNorm2d(8, affine=False))), "backbone.1, BatchNorm2d"),
        (tiny(backbone=nn.Sequential(conv, nn.MaxPool2d(3, 2))), "backbone.1, MaxPool2d"),
    ):
        with pytest.raises(ValueError, match=f"^mine: .*{message}"):
            Description("mine", model)
    save_weights(tmp_path / "run" / "last.safetensors", flashcaps.create_model("cnn_mnist"), {})
    assert "error: run: expected a capsule network" in error_of(say, tmp_path / "run", "--port", "0")


@pytest.mark.parametrize(("name", "option", "value"), [("dynamic", "leaky", True), ("em", "eps", 0.5)])
def test_an_option_the_page_does_not_know_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, option: str, value: Any
) -> None:
    """As if an algorithm had an option that the engine has not: at its default it changes nothing."""
    monkeypatch.setitem(OPTIONS, name, (OPTIONS[name][0] - {option}, OPTIONS[name][1]))
    Description("mine", tiny(routing=name))
    with pytest.raises(ValueError, match=rf"capsules.layers.0, whose {name} routing has {option}={value}"):
        Description("mine", tiny(routing=name, options={option: value}))


def test_where_capsules_look() -> None:
    """Stem 3 x 3 and two 3 x 3 of a block, the first with stride 2, then primary 5 x 5 with stride 3: by hand."""
    for model, grid, field in (
        (flashcaps.load("demo_dynamic"), [2, 4, 4], {"size": 17, "stride": 6, "offset": -4}),
        (tiny(), [8, 4, 4], {"size": 13, "stride": 4, "offset": 0}),
        (tiny(hidden=[12]), [12, 1, 1], {"size": 28, "stride": 28, "offset": 0}),
    ):
        facts = facts_of("model", model, IMAGES[:2])
        assert (facts["info"]["grid"], facts["field"]) == (grid, field)
    overrides: dict[str, Any] = {"backbone": {"channels": 8}, "primary": {"types": 3}, "image": (2, 32, 32)}
    info, content = network_file("stereo", flashcaps.create_model("em_smallnorb", **overrides), IMAGES[:2])
    assert info["decoder"] is False
    assert header_of(content)["field"]["size"] > 5


def test_a_dimension_is_named_after_what_it_moves_and_a_name_is_given_once() -> None:
    """A bar that leans from left to right, one that leans half as far, and one that stays; and the networks shipped."""
    bars = torch.zeros(3, 11, 28, 28)
    for d, slope in enumerate((0.5, 0.25, 0)):
        for n in range(11):
            for row in range(4, 24):
                column = 14 + round((n - 5) / 5 * slope * (14 - row))
                bars[d, n, row, column - 1 : column + 2] = 1
    deviations = {name: torch.tensor(0.2 if name == "skew" else 10.0) for name in MEASURED}
    assert names_of(effects_on(bars, deviations)) == ["slant", None, None]
    for name in DEMO:
        names = [x for x in facts_of(name, flashcaps.load(name), IMAGES)["info"]["dimensions"] if x]
        assert 0 < len(names) == len(set(names))
