"""One of --images, --table and --dataset makes a recipe, and says what was chosen."""

from pathlib import Path
from typing import Any

import pytest
import torch

from flashcaps.cli.train import asked_recipe
from flashcaps.models import create_model
from flashcaps.training.checkpoint import load, save_weights
from tests.conftest import Say
from tests.own_pictures import write_pictures
from tests.small_transformer import write_texts


def fields(*words: str, choices: dict[str, Any] | None = None, **own: str) -> Any:
    return asked_recipe(own, words, choices or {}, "cpu")


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(write_pictures(tmp_path, 12, 12, 12))
    recipe = fields("epochs=2", images=folder)
    assert recipe.train.epochs == 2
    out = capsys.readouterr().out
    assert "data: 9 pictures to train on" in out
    assert "warning" not in out
    monkeypatch.setitem(asked_recipe.__globals__, "memory_warning", lambda recipe, device: "too much")
    fields(images=folder)
    assert "warning: too much" in capsys.readouterr().out


def test_words_that_do_not_belong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--images and --table: expected one of them"):
        fields(images="a", table="b")
    with pytest.raises(ValueError, match="tiny: --images makes the recipe itself"):
        fields("tiny", images="a")
    with pytest.raises(ValueError, match="--images: expected the path of your data, got an empty one"):
        fields(images="")  # not the folder one is in


def test_texts_need_a_transformer_and_pictures_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(write_texts(tmp_path / "reviews.csv", 20))
    own = fields("epochs=2", text=table, choices={"transformer": "someone/name"})
    assert (own.data.name, own.train.epochs) == ("text", 2)
    assert "transformer: someone/name" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--transformer: expected a folder or name"):
        fields(text=table)
    with pytest.raises(ValueError, match="--transformer: expected with --text, got --images"):
        fields(images="pets", choices={"transformer": "x"})


def test_fine_tuning_keeps_everything_but_the_class_layer(here: Path, say: Say) -> None:
    """A shipped network on three classes of pictures, then a run of those on two."""
    write_pictures(here / "shapes", 24, 14, 14)
    (here / "two").mkdir()
    for name in ("bar", "disc"):
        (here / "two" / name).symlink_to(here / "shapes" / name)

    def train(data: str, start: str, out: str) -> Any:
        assert not say("train", "--images", data, "--from", start, "--out", out, "steps=1", "lr=0", "--device=cpu").code
        return load(out, weights="last")

    first, shipped = train("shapes", "demo_attention", "first"), load("demo_attention")
    second = train("two", "first", "second")
    assert (first.classes, second.classes) == (3, 2)
    assert first.image == second.image == shipped.image == (1, 28, 28)
    top = f"capsules.layers.{len(shipped.capsules.layers) - 1}."
    kept = [key for key, _ in shipped.named_parameters() if not key.startswith((top, "decoder.layers.0."))]
    assert [key for key in kept if "backbone" in key]
    for key in kept:
        assert torch.equal(first.state_dict()[key], shipped.state_dict()[key].float()), key
    assert second.config["recipe"]["model"]["overrides"]["pretrained"] == str(here / "first")
    again = "train", "--images", "shapes", "--from", "first", "--print"
    assert "warning" not in say(*again).err
    (here / "shapes" / "bar" / "0000.png").rename(here / "shapes" / "bar" / "9999.png")
    assert "others are held out now, and it was trained on some of them" in say(*again).err


def test_what_fine_tuning_cannot_begin_with(tmp_path: Path) -> None:
    folder = str(write_pictures(tmp_path / "shapes", 12, 12, 12))
    with pytest.raises(FileNotFoundError, match="neither a run folder, a weights file nor a shipped name"):
        fields(images=folder, choices={"start": "demo_dinamic"})
    with pytest.raises(ValueError, match="--from: expected with pictures, and without --routing"):
        fields(images=folder, choices={"start": "demo_dynamic", "routing": "em"})
    save_weights(tmp_path / "text.safetensors", create_model("heinsen_sst2", layers=2, width=8), {})
    with pytest.raises(ValueError, match=r"--from: expected a network for pictures, .* which reads texts"):
        fields(images=folder, choices={"start": str(tmp_path / "text.safetensors")})


def test_options_for_own_data_alone(say: Say) -> None:
    assert "a recipe takes model.routing=" in " ".join(say("train", "tiny", "--routing", "em").err.split())
