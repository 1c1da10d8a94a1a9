"""What `predict` says is what the model says, of the pixels training would have seen."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import flashcaps
from flashcaps.data.augment import center_crop, resize
from flashcaps.deploy.predict import answer_rule, class_names, draw, find_pictures, predict, predict_batches, prepare
from tests.fake_data import save_small

NAMES = tuple("abcdefghij")


@pytest.fixture
def model(tmp_path: Path) -> Any:
    made: Any = flashcaps.load(save_small(tmp_path / "w.safetensors", class_names=NAMES))
    with torch.no_grad():
        made.capsules.layers[0].weight.mul_(20)  # lengths that differ
    return made


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "more").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in ("b.png", "a.png", "more/c.bmp"):
        Image.fromarray(generator.integers(0, 255, (28, 28), dtype=np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


def pixels(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Image.open(path)).copy())[None].float() / 255


def test_predictions_are_the_models_own(model: Any, pictures: Path) -> None:
    found = predict(model, find_pictures([str(pictures)]), top=4, batch=2)
    files = [pictures / "a.png", pictures / "b.png", pictures / "more" / "c.bmp"]
    assert [p.file for p in found] == [str(f) for f in files]
    with torch.no_grad():
        scores = model(torch.stack([pixels(f) for f in files])).scores
    assert scores.std() > 0.01
    for prediction, row in zip(found, scores, strict=True):
        best = row.argsort(descending=True)[:4].tolist()
        assert [t.name for t in prediction.top] == [NAMES[j] for j in best]
        assert prediction.answer == (NAMES[best[0]],)
        assert [t.score for t in prediction.top] == pytest.approx(row[best].tolist(), abs=1e-6)
        assert [t.length for t in prediction.top] == pytest.approx(row[best].tolist(), abs=1e-6)
        assert prediction.to_dict()["top"][0]["name"] == NAMES[best[0]]


def test_files_come_from_folders_patterns_and_stdin(pictures: Path) -> None:
    a, b = (str(pictures / f) for f in ("a.png", "b.png"))
    assert [p.name for p in find_pictures([b, a])] == [b, a]
    assert [p.name for p in find_pictures([str(pictures / "*.png")])] == [a, b]
    assert [p.name for p in find_pictures(["-"], io.BytesIO(f"{a}\n{b}\n".encode()))] == [a, b]
    content = Path(a).read_bytes()
    (picture,) = find_pictures(["-"], io.BytesIO(content))
    assert (picture.name, picture.source) == ("stdin", content)


def test_what_is_not_there_is_named(pictures: Path) -> None:
    (pictures / "link.png").symlink_to("nowhere")
    for word in ("none.png", "*.jpg", "link.png"):
        with pytest.raises(FileNotFoundError, match=f"{re.escape(word)}: no such file, folder or pattern"):
            find_pictures([str(pictures / word)])
    (pictures / "empty").mkdir()
    with pytest.raises(ValueError, match="no pictures in this folder"):
        find_pictures([str(pictures / "empty")])
    with pytest.raises(ValueError, match="files: expected a file, folder or pattern, got an empty name"):
        find_pictures([""])
    (pictures / "link.png").unlink()
    (pictures / "._a.png").write_bytes(b"x")
    (pictures / "folder.png").mkdir()
    assert [Path(p.name).name for p in find_pictures([str(pictures)])] == ["a.png", "b.png", "c.bmp"]


def test_pictures_are_made_as_the_data_were(model: Any, pictures: Path) -> None:
    file = pictures / "a.png"
    torch.testing.assert_close(prepare(file, model), pixels(file))
    torch.testing.assert_close(prepare(file, model, invert=True), 1 - pixels(file))
    colour = Image.open(file).convert("RGB").resize((56, 56), Image.Resampling.NEAREST)
    colour.save(pictures / "large.png")
    torch.testing.assert_close(prepare(pictures / "large.png", model), pixels(file))
    model.config["recipe"]["augment"]["crop"] = 28
    for data in ({"resize": 48}, {"options": {"size": (40, 50)}}, {"options": {"size": 36}}, {"name": "smallnorb"}):
        model.config["recipe"]["data"] = data
        size = data.get("resize") or data.get("options", {}).get("size", 96)
        whole = resize(torch.from_numpy(np.asarray(Image.open(file)).copy())[None, None], size)
        torch.testing.assert_close(prepare(file, model), center_crop(whole, 28)[0].float() / 255)


def test_answers_of_several_classes(model: Any, pictures: Path) -> None:
    data = model.config["recipe"]["data"]
    data["name"] = "multimnist"
    assert answer_rule(model) == ("top2", 0.5)
    (found,) = predict(model, find_pictures([str(pictures / "a.png")]))
    assert found.answer == tuple(t.name for t in found.top[:2])
    data["options"]["multilabel"] = True
    assert answer_rule(model)[0] == "threshold"
    (found,) = predict(model, find_pictures([str(pictures / "a.png")]), top=10)
    assert found.answer == tuple(t.name for t in found.top if t.score > 0.5)


def test_names_without_any_in_the_file() -> None:
    model: Any = flashcaps.create_model("capsnet_tiny", classes=3)
    assert class_names(model) == ("0", "1", "2")
    model.config = {"recipe": {"data": {"name": "fashion_mnist"}}}
    assert class_names(model) == ("0", "1", "2")  # ten names do not fit three classes
    model.classes = 10
    assert class_names(model)[0] == "T-shirt/top"


def test_drawn_pictures_show_input_and_reconstruction(model: Any, pictures: Path, tmp_path: Path) -> None:
    (found,) = predict_batches(model, find_pictures([str(pictures / "a.png")] * 2))
    first, second = draw(model, found, tmp_path / "out")
    assert (first.name, second.name) == ("a.png", "a-2.png")
    wide = np.asarray(Image.open(first))
    assert wide.shape == (28, 56)
    np.testing.assert_array_equal(wide[:, :28], np.asarray(Image.open(pictures / "a.png")))
    with torch.no_grad():
        drawn = model.reconstruct(model(pixels(pictures / "a.png")[None]).routed)[0, 0]
    np.testing.assert_allclose(wide[:, 28:] / 255, drawn.numpy(), atol=0.51 / 255 + 1e-6)
    model.config["recipe"]["data"]["name"] = "multimnist"
    (found,) = predict_batches(model, find_pictures([str(pictures / "a.png")]))
    (both,) = draw(model, found, tmp_path / "two")
    assert np.asarray(Image.open(both)).shape == (28, 84)


def test_models_that_cannot_are_answered(model: Any, pictures: Path, tmp_path: Path) -> None:
    (found,) = predict_batches(model, find_pictures(str(pictures / "a.png")))  # one word alone
    with pytest.raises(ValueError, match="batch: expected at least 1, got 0"):
        predict(model, find_pictures(str(pictures)), batch=0)
    model.decoder = None
    with pytest.raises(ValueError, match="no decoder"):
        draw(model, found, tmp_path)
    text: Any = flashcaps.create_model("heinsen_sst2", layers=2, width=4)
    with pytest.raises(ValueError, match="this one reads text: predict_texts"):
        prepare(pictures / "a.png", text)
