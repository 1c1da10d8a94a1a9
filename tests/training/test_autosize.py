"""Models sized by rule: they take the images, keep to their limits, and say why."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcaps
from flashcaps.analysis import open_run
from flashcaps.analysis.parse_tree import credit
from flashcaps.data import load_data
from flashcaps.data.user_images import list_text
from flashcaps.deploy.export import export_model, open_exported
from flashcaps.deploy.hub import from_pretrained, save_pretrained
from flashcaps.deploy.predict import find_pictures, find_texts, open_transformer, predict, predict_texts, prepare
from flashcaps.models import create_model
from flashcaps.routing import ROUTING
from flashcaps.training.autosize import LONGEST, PIXELS, WEIGHTS, own_command, own_recipe, own_text_recipe, size_model
from flashcaps.training.loader import open_sources
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.memory import memory_warning
from flashcaps.training.recipe import read_recipe
from tests.conftest import Say
from tests.data.test_user_images import write_table
from tests.fake_timm import FakeTimm
from tests.own_pictures import SHAPES, write_pictures

from ..small_transformer import write_texts, write_transformer

IMAGES = [(1, 6, 6), (1, 28, 28), (3, 50, 70), (3, 70, 50), (2, 13, 90), (3, 96, 96), (1, 128, 128), (3, 300, 20)]


@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_any_size_fits(image: tuple[int, int, int]) -> None:
    sized = size_model(image, 4)
    model = create_model(sized.name, **sized.overrides).eval()
    with torch.no_grad():
        pose = model.primary(model.backbone(torch.rand(1, *image))).pose
        assert model(torch.rand(2, *image)).scores.shape == (2, 4)
    assert tuple(pose.shape[2:4]) == sized.grid
    assert max(sized.grid) <= LONGEST
    assert model.image == image
    assert (model.decoder is not None) == (image[0] * image[1] * image[2] <= PIXELS)
    assert len(sized.why) == 4


@pytest.mark.parametrize("routing", ROUTING)
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_transforms_keep_to_their_budget(classes: int, routing: str) -> None:
    sized = size_model((3, 32, 32), classes, routing)
    with torch.device("meta"):
        model = create_model(sized.name, **sized.overrides)
    (layer,) = model.capsules.layers
    assert layer.name == routing
    assert layer.weight.numel() <= WEIGHTS or sized.overrides["primary"]["types"] == 2
    assert f"{layer.weight.numel():,} weights" in sized.why[1]


def test_the_stride_is_the_smallest_that_does() -> None:
    strides = [size_model((1, n, n), 2).overrides["backbone"]["stride"] for n in (14, 28, 40, 60, 90)]
    assert strides == sorted(strides)
    assert strides[0] == 1
    assert "stages" in size_model((1, 224, 224), 2).overrides["backbone"]


def test_too_small_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 6 x 6 pixels, got 5 x 9"):
        size_model((1, 5, 9), 2)
    with pytest.raises(ValueError, match="routing: expected one of"):
        size_model((1, 9, 9), 2, "dynamics")


def test_a_recipe_for_a_folder(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "my shapes", 60, 20, 24)
    recipe, why = own_recipe("images", str(folder), ["epochs=3"])
    assert (recipe.name, recipe.data.name, recipe.train.epochs) == ("my_shapes", "images", 3)
    assert recipe.data.options["class_names"] == ["bar", "disc", "ring"]
    assert why[0].startswith("data: 42 pictures to train on, brought to 3 x 20 x 24; 3 classes of 20 to 20")
    assert why[-1].startswith("training: 3 epochs, batch 4, margin loss")
    sources = open_sources(recipe, None, torch.device("cpu"), None)
    assert sources.dataset.shape == (3, 20, 24)
    smaller, _ = own_recipe("images", str(folder), routing="attention", size=(16, 18))
    assert (smaller.loss.kind, smaller.model.overrides["image"]) == ("cross_entropy", [3, 16, 18])
    again = ["--images", str(folder.resolve()), "--size", "16", "18", "--routing", "attention"]
    assert own_command(smaller) == again
    assert own_command(read_recipe("tiny")) == ["tiny"]
    overridden, _ = own_recipe("images", str(folder), ["model.routing=em"])
    assert (overridden.loss.kind, "--routing" in own_command(overridden)) == ("margin", False)  # it would choose spread


@pytest.mark.parametrize("size", ["3", "[16, 16]"])
def test_pictures_and_model_have_one_size(tmp_path: Path, size: str) -> None:
    folder = str(write_pictures(tmp_path, 12, 20, 24))
    with pytest.raises(ValueError, match=r"data\.size: expected \[20, 24\], which the model is made for, got .*"):
        own_recipe("images", folder, [f"size={size}"])
    own_recipe("images", folder, ["size=[20,24]"])


def test_a_network_of_timm_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", FakeTimm())
    folder = write_pictures(tmp_path, 12, 64, 48)
    recipe, why = own_recipe("images", str(folder), ["epochs=1"], backbone="timm:resnet18", size=(64, 48))
    assert "timm:resnet18, pretrained, whose last feature map has 16 channels of 3 x 2" in why[1]
    assert "a grid of 3 x 2 x 16 types = 96" in why[2]
    timm: Any = sys.modules["timm"]
    assert memory_warning(recipe, torch.device("cpu"), free=2**40) is None
    assert timm.asked == [False, False]  # nothing was fetched to choose sizes
    model = create_model(recipe.model.name, **recipe.model.overrides)
    assert timm.asked[-1]
    assert model(torch.rand(2, 3, 64, 48)).scores.shape == (2, 3)
    assert own_command(recipe)[-2:] == ["--backbone", "timm:resnet18"]
    large = size_model((3, 224, 224), 3, backbone="timm:resnet18")
    assert large.grid == (6, 6)
    assert large.overrides["primary"]["kernel"] == 3
    with pytest.raises(ValueError, match=r"backbone: expected timm:NAME, as timm:resnet18, got 'resnet18'"):
        size_model((3, 64, 48), 3, backbone="resnet18")


def test_a_recipe_for_several_labels(tmp_path: Path) -> None:
    table = write_table(tmp_path, "file,sea,sky", [",1,0", ",0,1", ",1,1", ",0,0"] * 5)
    for routing, loss in (("dynamic", "margin"), ("heinsen", "bce"), ("em", "margin")):
        recipe, why = own_recipe("table", str(table), routing=routing)
        assert recipe.loss.kind == loss
        assert recipe.loss.reconstruction == 0
        assert recipe.model.overrides["decoder"] is False
        assert "several at once" in why[0]
        assert "as images have several classes" in why[4]


def table(folder: Path, *lines: str) -> str:
    path = folder / "texts.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("transformer") / "bert")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, transformer: Path) -> Path:
    folder = tmp_path_factory.mktemp("run")
    texts = write_texts(folder / "reviews.csv", 200)
    recipe, _ = own_text_recipe(str(texts), str(transformer), ["epochs=12", "evaluate_every=4"])
    train(recipe, RunOptions("cpu", str(folder / "run")))
    return folder / "run"


def test_a_table_of_texts(tmp_path: Path) -> None:
    path = table(tmp_path, "sentence,label,split", '"one, two",b,train', "three,a,train", "four,a,test", "five,b,dev")
    listing = list_text(path)
    assert listing.files == ["one, two", "three", "four", "five"]
    assert listing.class_names == ("a", "b")
    assert listing.labels.tolist() == [1, 0, 0, 1]
    data = load_data("text", path=path)
    assert data.train.text == ("one, two", "three")
    assert data.test.text == ("four",)
    assert data.validation.labels.tolist() == [1]
    for lines, message in (
        (["text,label", "fine,a", ",b"], "row 2: expected text in column 'text', got none"),
        (["text,label,split", "one,a,test", "two,b,test"], "0 and 2; see its column split"),
    ):
        with pytest.raises(ValueError, match=message):
            load_data("text", path=table(tmp_path, *lines))


def test_the_recipe_says_what_was_chosen(tmp_path: Path, transformer: Path) -> None:
    path = str(write_texts(tmp_path / "my reviews.csv", 60))
    recipe, why = own_text_recipe(path, str(transformer), ["epochs=2"])
    assert recipe.name == "my_reviews"
    assert recipe.train.epochs == 2
    assert recipe.loss.kind == "cross_entropy"
    assert "42 texts to train on; 2 classes of 30 to 30" in why[0]
    assert own_command(recipe) == ["--text", path, "--transformer", str(transformer)]
    other, _ = own_text_recipe(path, "someone/name", routing="em")
    assert other.loss.kind == "spread"
    assert other.data.transformer == "someone/name"
    assert own_command(other)[-2:] == ["--routing", "em"]
    long = table(tmp_path, "text,label", "a,x", "b,y", f"{'word ' * 80},x")
    assert "about 1 texts are longer, data.tokens=128 reads more" in own_text_recipe(long, "name")[1][2]
    assert recipe.train.select == "validation"
    assert own_text_recipe(long, "name")[0].train.select == "last"  # three texts: none to validate on
    with pytest.raises(ValueError, match="--transformer: expected a folder or name"):
        own_text_recipe(path, "")
    with pytest.raises(ValueError, match=r"routing: expected one of .*'heinsen', got 'discriminative'"):
        own_text_recipe(path, "name", routing="discriminative")


def test_from_a_table_to_answers(run: Path, say: Say) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["value"] <= 20
    assert round(json.loads(say("evaluate", run, "--device", "cpu", "--json").out)["error"], 4) == result["value"]
    model: Any = flashcaps.load(run)
    good, bad = predict_texts(model, ["the film is lovely and warm", "a slow and empty story"])
    assert (good.answer, bad.answer) == (("good",), ("bad",))
    assert good.file == "the film is lovely and warm"
    alone = predict_texts(model, ["a slow and empty story"], top=1)[0]  # padding changes nothing
    assert alone.top[0].score == pytest.approx(bad.top[0].score, abs=1e-4)
    drawn = credit(open_run(run, results=run))
    assert drawn.data["credit"].shape[2] == 3


def test_it_is_shared_without_the_folders_of_this_machine(run: Path, tmp_path: Path, transformer: Path) -> None:
    save_pretrained(flashcaps.load(run), tmp_path / "shared", run=run)
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "Hidden states of bert, frozen." in card
    assert str(transformer.parent) not in card + (tmp_path / "shared" / "config.json").read_text()
    again = from_pretrained(tmp_path / "shared")
    with pytest.raises(FileNotFoundError, match="'bert' is not a transformer on this machine"):
        predict_texts(again, ["a"])
    assert predict_texts(again, ["warm and bright"], transformer=str(transformer))[0].answer == ("good",)


def test_another_transformer_is_refused(run: Path, tmp_path: Path) -> None:
    wide = write_transformer(tmp_path / "wide", layers=1, width=8)
    with pytest.raises(ValueError, match="expected 3 layers, embeddings included, of width 16, got 2 of 8"):
        open_transformer(flashcaps.load(run), str(wide))
    with pytest.raises(ValueError, match="expected a model of text"):
        predict_texts(flashcaps.create_model("capsnet_tiny"), ["a"])


def test_where_texts_are_found(tmp_path: Path) -> None:
    lines = tmp_path / "some.txt"
    lines.write_text("one\n\n two \n")
    rows = table(tmp_path, "id,review", "1,three", "2,", "3,four")
    assert find_texts([str(lines), rows]) == ["one", "two", "three", "four"]
    assert find_texts(["-"], io.BytesIO(b"five\nsix")) == ["five", "six"]
    Path(rows).rename(tmp_path / "LOUD.CSV")
    assert find_texts([str(tmp_path / "LOUD.CSV")]) == ["three", "four"]
    lines.write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=rf"{lines.name}: not text in UTF-8 .*; this model reads text, one per line"):
        find_texts([str(lines)])
    with pytest.raises(FileNotFoundError, match="or --text 'a text'"):
        find_texts(["a sentence"])
    with pytest.raises(ValueError, match="expected texts, got none"):
        find_texts([])


def test_several_labels_at_once(tmp_path: Path, transformer: Path) -> None:
    rows = [f"the film is {'warm ' * w}{'dull ' * d},{w},{d}" for w, d in ((1, 0), (0, 1), (1, 1), (0, 0))] * 6
    path = table(tmp_path, "text,warm,dull", *rows)
    recipe, why = own_text_recipe(path, str(transformer), ["steps=2", "select=last"])
    assert recipe.loss.kind == "bce"
    assert "several at once" in why[0]
    outcome = train(recipe, RunOptions("cpu", str(tmp_path / "run")))
    assert outcome.test.rule == "threshold"
    model: Any = flashcaps.load(tmp_path / "run")
    assert set(predict_texts(model, ["warm"])[0].answer) <= {"warm", "dull"}


@pytest.mark.slow
def test_two_hundred_pictures_of_three_classes(tmp_path: Path, pictures: None, say: Say) -> None:
    folder, run = write_pictures(tmp_path / "shapes", 200, 50, 70), tmp_path / "run"
    recipe, _ = own_recipe("images", str(folder))
    outcome = train(recipe, RunOptions("cpu", str(run)))
    assert outcome.test.examples == 41
    assert outcome.test.error <= 10

    assert json.loads(say("evaluate", run, "--device", "cpu", "--json").out)["wrong"] == outcome.test.wrong

    fresh = write_pictures(tmp_path / "fresh", 30, 50, 70, seed=9)
    model: Any = flashcaps.load(run)
    pictures = find_pictures([str(fresh)])
    found = predict(model, pictures)
    right = [p.answer == (Path(p.file).parent.name,) for p in found]
    assert sum(right) >= 27
    for picture in ("curve.png", "reconstructions.png"):
        assert (run / picture).stat().st_size > 1000

    images = torch.stack([prepare(p.source, model) for p in pictures])
    report = export_model(model, tmp_path / "shapes.onnx", real=images)
    assert report.real is not None
    assert report.difference <= 1e-4
    scores = open_exported(report.path)(images)[0]
    assert [(SHAPES[k],) for k in scores.argmax(1).tolist()] == [p.answer for p in found]
