"""A shared folder gives the same model back, says what it is, and holds nothing that can run."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import huggingface_hub
import pytest
import torch

import flashcaps
from flashcaps.deploy.hub import SAFE, _views, from_pretrained, model_card, push_to_hub, save_pretrained
from flashcaps.training.evaluate import views
from tests.fake_data import save_small

RESULT = {
    "recipe": "small", "metric": "test_error_percent", "value": 1.5, "interval": [1.0, 2.25], "examples": 1000,
    "split": "test", "epochs": 3.0, "hardware": "CPU", "commit": "abc123", "weights": "last",
    "versions": {"python": "3.12", "torch": "2.6", "flashcaps": "0.1.0"},
    "command": "flashcaps train small --images /home/somebody/pets epochs=3",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Any:
    options = {"path": "/home/somebody/pets", "class_names": list("abcdefghij")}
    return flashcaps.load(save_small(tmp_path / "last.safetensors", **options))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(RESULT))
    return tmp_path / "run"


def same(a: Any, b: Any) -> bool:
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        return torch.equal(a(x).scores, b(x).scores)


def test_there_and_back(model: Any, run: Path, tmp_path: Path) -> None:
    folder = save_pretrained(model, tmp_path / "shared", run=run)
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again: Any = from_pretrained(folder)
    assert same(model, again)
    assert not again.training
    assert again.config["recipe"]["data"]["options"]["class_names"] == list("abcdefghij")
    config = json.loads((folder / "config.json").read_text())
    assert (config["library_name"], config["model"]["name"]) == ("flashcaps", "capsnet_tiny")
    # folders of this machine stay here
    assert not [p.name for p in folder.iterdir() if b"somebody" in p.read_bytes()]
    assert model.config["recipe"]["data"]["options"]["path"] == "/home/somebody/pets"  # the model's own is left alone


def test_the_card_tells_what_was_measured(model: Any) -> None:
    card = model_card(model, model.config, RESULT, "apache-2.0")
    front = card.split("---")[1]
    for line in ("library_name: flashcaps", "pipeline_tag: image-classification", "license: apache-2.0"):
        assert line in front
    assert "value: 0.985" in front
    for text in (
        "| 1.50 % | 1.00 to 2.25 % | 1,000 (test) |",
        "flashcaps train small --images pets epochs=3",
        "abc123",
        "torch 2.6",
        "Classes: a, b, c",
        "1 x 28 x 28 images, 10 classes",
        "margin loss, adamw at 0.005",
    ):
        assert text in card
    bare = model_card(flashcaps.create_model("heinsen_sst2", layers=2, width=4))
    assert "hidden states of text" in bare
    assert "## Result" not in bare
    assert "image-classification" not in bare


def test_the_hub_gets_and_gives_a_folder(
    model: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the signatures of the real package."""
    hub = create_autospec(huggingface_hub)
    made, sent = hub.HfApi.return_value.create_repo, hub.HfApi.return_value.upload_folder
    made.return_value = "address of someone/tiny"
    sent.side_effect = lambda folder_path, **_: shutil.copytree(folder_path, tmp_path / "there")
    hub.snapshot_download.return_value = str(tmp_path / "there")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert push_to_hub(model, "someone/tiny", run=run, private=True) == "address of someone/tiny"
    made.assert_called_once_with("someone/tiny", private=True, exist_ok=True)
    assert sent.call_args.kwargs["repo_id"] == "someone/tiny"
    assert same(from_pretrained("someone/tiny", revision="main"), model)
    hub.snapshot_download.assert_called_once_with("someone/tiny", revision="main", allow_patterns=SAFE)
    assert not any(pattern.endswith((".bin", ".pt", ".pkl", "*")) for pattern in SAFE)


def test_what_cannot_be_shared_is_answered(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="create_model or load made"):
        save_pretrained(torch.nn.Linear(2, 2), tmp_path)
    with pytest.raises(FileNotFoundError, match="only a finished run has one"):
        save_pretrained(model, tmp_path / "s", run=tmp_path)
    with pytest.raises(FileNotFoundError, match="names on the hub look like someone/model"):
        from_pretrained("./nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        from_pretrained(tmp_path / "empty")
    with pytest.raises(ValueError, match="expected someone/model"):
        push_to_hub(model, "tiny")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install .*huggingface"):
        push_to_hub(model, "someone/tiny")


@pytest.mark.parametrize(("train", "told"), [
    ({}, ""),
    ({"mirror": False, "nudge": 0}, ""),
    ({"mirror": True}, "2 views of each image: itself, its mirror image."),
    ({"nudge": 2}, "5 views of each image: itself, each moved by 2 along each diagonal."),
    ({"mirror": True, "nudge": 1}, "10 views of each image: itself, its mirror image, each moved by 1 along each"),
])  # fmt: skip
def test_a_card_tells_how_images_were_seen(train: dict[str, Any], told: str) -> None:
    text = _views(train)
    assert told in text
    assert bool(text) == bool(told)
    image = torch.zeros(1, 1, 3, 3)
    count = len(views(image, bool(train.get("mirror")), train.get("nudge", 0)))
    assert count == 1 or f"of {count} views" in text
