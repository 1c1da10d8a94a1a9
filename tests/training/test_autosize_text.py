"""Own texts: a table, a transformer made here, and from training to prediction without a network."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import flashcaps
from flashcaps.analysis import open_run
from flashcaps.analysis.credit import credit
from flashcaps.cli.train import evaluate_run
from flashcaps.data import load_data
from flashcaps.data.listing import list_text
from flashcaps.deploy.hub import from_pretrained, save_pretrained
from flashcaps.deploy.predict import find_texts, open_transformer, predict_texts
from flashcaps.training.autosize import own_command, own_text_recipe
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.text import HeldText, Phrases, load_transformer

from ..small_transformer import write_texts, write_transformer


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
    assert data.validation is not None
    assert data.validation.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["text,label", "fine,a", ",b"], "row 2: expected text in column 'text', got none"),
        (["text,label"], "no rows; expected a header such as text,label"),
        (["text,label", "one,a", "two,a"], "at least two classes"),
        (["text,label,split", "one,a,test", "two,b,test"], "0 and 2; see its column split"),
        (["text,label", "fine,a", "a quiet, moving film,b"], "row 2: more fields than the header has"),
        (["fine,a", "good,a", "bad,b"], "expected a header, got a first line with the label 'a'"),
        (["text,label,split", "one,a,tain", "two,b,test"], "split: expected train, val or test, got 'tain'"),
    ],
)
def test_tables_that_cannot_be_learned_from(tmp_path: Path, lines: list[str], message: str) -> None:
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
    assert "about 1 texts are longer, data.tokens=128 reads on" in own_text_recipe(long, "name")[1][2]
    assert recipe.train.select == "validation"
    assert own_text_recipe(long, "name")[0].train.select == "last"  # three texts: none to validate on
    with pytest.raises(ValueError, match="--transformer: expected a folder or name"):
        own_text_recipe(path, "")
    with pytest.raises(ValueError, match="routing: expected one of 'heinsen'"):
        own_text_recipe(path, "name", routing="discriminative")


def test_states_are_made_batch_by_batch(tmp_path: Path, transformer: Path) -> None:
    opened = load_transformer(str(transformer), "cpu")
    data = load_data("text", path=str(write_texts(tmp_path / "t.csv", 40)))
    sizes: list[int] = []
    states = opened.states
    opened.states = lambda ids, mask: sizes.append(len(ids)) or states(ids, mask)  # type: ignore[method-assign,func-returns-value]
    held = HeldText(Phrases(data.train, opened, 64), 2)
    assert sizes == []
    assert [len(b.targets) for b in held.batches(8)] == sizes == [8, 8, 8, 4]


def test_from_a_table_to_answers(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["value"] <= 20
    evaluation, names = evaluate_run(str(run), [], None, "test", "cpu", None, 100)
    assert names == ("bad", "good")
    assert round(evaluation.error, 4) == result["value"]
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
    with pytest.raises(ValueError, match=rf"{lines.name}: not text in UTF-8 .*; this model reads text, a line each"):
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


