"""Recipes: strict, overridable, complete."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flashcaps.data import DATA
from flashcaps.models import create_model
from flashcaps.models.registry import MODELS
from flashcaps.nn.backbones import Conv, Standardise
from flashcaps.training.batches import Share
from flashcaps.training.distributed import Workers
from flashcaps.training.loader import open_sources
from flashcaps.training.recipe import SECTIONS, Claim, Train, list_recipes, make_recipe, read_recipe
from flashcaps.training.step import TrainStep
from tools.results import RESULTS
from tools.tables import read_tables

from ..fake_data import CPU, SMALL, small_recipe
from ..small_transformer import Letters


def test_there_are_forty_recipes_and_each_names_what_exists() -> None:
    names = list_recipes()
    assert len(names) >= 40
    for name in names:
        recipe = read_recipe(name)
        assert recipe.name == name
        assert recipe.about
        assert recipe.data.name in DATA


def test_every_claim_names_its_paper_and_a_number_or_why_there_is_none() -> None:
    for name in (n for n in list_recipes() if n != "tiny" and not n.startswith(("demo_", "pairs_", "small_"))):
        claim = read_recipe(name).claim
        assert claim.paper.split(",")[0] in ("dynamic", "em", "attention", "heinsen", "discriminative"), name
        if claim.value is None:
            assert "no paper has" in claim.note, name  # a baseline of our own, and it says so
            continue
        assert not claim.accuracy, name  # the number says it
        assert (claim.test_error_percent is None) != (claim.test_accuracy_percent is None), name


@pytest.mark.parametrize(
    ("name", "value"),
    [("capsnet_mnist", 0.25), ("cnn_mnist", 0.39), ("capsnet_multimnist", 5.2), ("capsnet_affnist", 79.0),
     ("attention_resnet_cifar100", 78.02), ("em_simple_cifar100", 37.73), ("attention_diverse_vector", 85.74),
     ("heinsen_smallnorb", 99.1), ("em_views_azimuth", 13.5), ("cnn_views_elevation", 17.8),
     ("discriminative_fashion_l2_norec", 6.75),
     ("discriminative_cifar10_l1_norec", 14.04)],
)  # fmt: skip
def test_claims_are_the_papers(name: str, value: float) -> None:
    assert read_recipe(name).claim.value == value


# what the papers and the authors' code say of training: Adam's rate, its decay (factor, every), images in a step
TRAINED = {
    "capsnet_mnist": (0.001, 0.96, 2000, 128),
    "capsnet_mnist_original": (0.001, 0.96, 2000, 128),
    "capsnet_multimnist": (0.001, 0.96, 20_000, 128),
    "discriminative_fashion_l1_norec": (0.001, 0.96, 1000, 128),
    "discriminative_fashion_l2_norec": (0.001, 0.96, 1000, 128),
}


@pytest.mark.parametrize(("name", "numbers"), TRAINED.items())
def test_rates_and_batches_are_the_papers(name: str, numbers: tuple[float, ...]) -> None:
    recipe = read_recipe(name)
    assert (recipe.optimiser.kind, recipe.schedule.kind) == ("adam", "exponential")
    assert numbers == (recipe.optimiser.lr, recipe.schedule.factor, recipe.schedule.every, recipe.train.batch)


def test_reconstruction_weighs_what_the_paper_says_and_20_times_more_in_the_authors_code() -> None:
    weights = {name: read_recipe(name).loss.reconstruction for name in list_recipes()}
    for name in ("capsnet_mnist", "capsnet_multimnist", "capsnet_multimnist_r1", "capsnet_affnist"):
        assert weights[name] == 0.0005, name
    for name in ("capsnet_mnist_original", "capsnet_mnist_r1"):
        assert (weights[name], read_recipe(name).model.overrides["original"]) == (0.0005 * 20, True)
    for name in ("capsnet_mnist_original", "capsnet_mnist_r1", "capsnet_mnist_norec", "capsnet_mnist_r1_norec"):
        recipe = read_recipe(name)
        assert recipe.optimiser.eps == pytest.approx(1e-8 * 20)
        assert (recipe.model.overrides["options"], recipe.schedule.smooth) == ({"bias": True}, True)
    assert not any(w for name, w in weights.items() if "norec" in name)


def test_toys_are_cropped_and_lit_at_random_for_em() -> None:
    recipe = read_recipe("em_smallnorb")
    assert (recipe.data.resize, recipe.augment.crop, recipe.augment.contrast) == (48, 32, (0.5, 1.5))
    assert recipe.augment.brightness == pytest.approx(32 / 255, abs=1e-5)
    assert recipe.loss.kind == "logit_cross_entropy"


def test_photographs_are_normalised_at_once_and_only_models_that_reconstruct_have_a_decoder() -> None:
    photographs = ("cifar10", "cifar100", "svhn", "smallnorb", "synthetic_norb", "fashion_mnist")
    for recipe in map(read_recipe, list_recipes()):
        with torch.device("meta"):
            model: Any = create_model(recipe.model.name, **recipe.model.overrides)
        first = [m for m in model.modules() if isinstance(m, Standardise | nn.BatchNorm2d | nn.Conv2d)][:2]
        assert recipe.data.name not in photographs or not all(isinstance(m, nn.Conv2d) for m in first), recipe.name
        assert (model.decoder is not None) == (recipe.loss.reconstruction > 0), recipe.name


def shrunk(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Overrides that leave a model its structure and take most of its width."""
    spec: Any = MODELS[name]
    if hasattr(spec, "body"):
        small = dataclasses.replace(spec, body=Conv(3, kernel=5, stride=4), hidden=spec.hidden and (8,))
        monkeypatch.setitem(MODELS, name, small)
        return {}
    if not hasattr(spec, "backbone"):
        return {}
    layers = [dataclasses.replace(layer, types=2) if hasattr(layer, "types") else layer for layer in spec.layers]
    monkeypatch.setitem(MODELS, name, dataclasses.replace(spec, layers=tuple(layers)))
    narrow: dict[str, Any] = {"channels": 4}
    if hasattr(spec.backbone, "stages"):
        narrow = {"stages": ((4, 1, 1), (4, 1, 2))}
    return {"backbone": narrow, "primary": {"types": 2}}


ROWS = [row for table in read_tables(RESULTS) for row in table.row]
COMMANDS = {spec.partition(" ensemble=")[0] for row in ROWS for spec in row.specs}


@pytest.mark.usefixtures("fake_data")
@pytest.mark.parametrize("command", sorted(COMMANDS.union(list_recipes()) - {""}))
def test_every_recipe_and_every_command_of_a_table_trains_two_steps(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashcaps.training.text.Transformer", Letters)
    name, *overrides = command.split()
    recipe = read_recipe(name, [*overrides, "train.batch=2", "train.steps=2", "precision=fp32", "data.test=4"])
    held = min(recipe.data.validation, 20)
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, validation=held))
    found = open_sources(recipe, None, CPU, Share(2))
    stream: Any = found.train
    overrides = {**found.options, **recipe.model.overrides, **shrunk(recipe.model.name, monkeypatch)}
    model = create_model(recipe.model.name, **overrides)
    before = [p.clone() for p in model.parameters()]
    step = TrainStep(model, stream, recipe, found.test.rule, Workers(CPU))
    plan = stream.plan(0)
    for k in range(2):
        step(plan.index[k], plan.noise[k], k)
    loss, error, images = step.read()
    assert 0 < loss < float("inf")
    assert 0 <= error <= 100
    assert images == 4
    moved = [not torch.equal(a, p) for a, p in zip(before, model.parameters(), strict=True)]
    assert sum(moved) >= 0.5 * len(moved)  # heinsen's betas start at 0 and hold some weights still at first


def test_overrides_by_full_and_by_short_name() -> None:
    recipe = small_recipe("train.epochs=7", "lr=0.5", "augment.flip=true", "milestones=[1, 2]")
    assert (recipe.train.epochs, recipe.optimiser.lr, recipe.augment.flip) == (7, 0.5, True)
    assert recipe.schedule.milestones == (1, 2)
    assert recipe.overrides == ("train.epochs=7", "lr=0.5", "augment.flip=true", "milestones=[1, 2]")
    recipe = small_recipe("iterations=1", "model.options.leaky=true", "data.seed=3")
    assert recipe.model.overrides["iterations"] == 1
    assert recipe.model.overrides["options"] == {"leaky": True}
    assert recipe.data.options == {"seed": 3}
    assert SMALL["model"].get("iterations") is None  # the source is left alone


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epoch=3", "epoch: no such field; did you mean 'epochs'?"),
        ("train.epoch=3", "train.epoch: no such field; did you mean 'epochs'?"),
        ("trian.epochs=3", "did you mean 'train'?"),
        ("epochs=three", "train.epochs: expected int, got 'three'"),
        ("epochs=2.5", "train.epochs: expected int, got 2.5"),
        ("capture=1", "train.capture: expected bool, got 1"),
        ("precision=bf61", "one of fp32, tf32, bf16; did you mean 'bf16'?"),
        ("betas=[0.9]", "optimiser.betas: expected a list of 2"),
        ("kind=adam", "say which: loss.kind, optimiser.kind, schedule.kind"),
        ("epochs", "expected key=value"),
        ("zzz=1", "no such field"),
        ("schedule.=1", "schedule.: no such field; there are kind, factor"),
        ("train.epochs=0", "train.epochs: expected at least 1, got 0"),
        ("accumulate=3", "expected a divisor of train.batch=8"),
        ("ema=1", "train.ema: expected at least 0 and below 1, got 1"),
        ("schedule.momentum=[0.9, 0.8]", "optimiser.kind='radam'"),
        ("model.name=''", "model.name: expected a name"),
        ("train.epochs.x=1", "train.epochs.x: expected a table in epochs, got 3"),
        ("lr=nan", "optimiser.lr: expected a number from 0 to 1000000, got nan"),
        ("lr=inf", "optimiser.lr: expected at most 1000000, got inf"),
        ("betas=[0.9, 1.5]", "optimiser.betas[1]: expected at least 0 and below 1, got 1.5"),
        ("batch=1_000_000_000_000", "train.batch: expected at most 1000000, got 1000000000000"),
        ("epochs=" + "9" * 4000, "train.epochs: expected at most 1000000, got a number of 13288 bits"),
        ("epochs=" + "9" * 40_000, "train.epochs: expected int, got '999"),
        ("contrast=[0.5]", "augment.contrast: expected two values"),
        ("padding=2", "augment.padding: expected augment.crop beside it"),
        ("label_smoothing=0.1", "loss.label_smoothing: expected loss.kind='cross_entropy' beside it, got 'margin'"),
        ("model.primary.types=99_999_999_999", "model.overrides.primary.types: expected at most"),
        ("model.options.rate=nan", "model.overrides.options.rate: expected a number"),
        ("data.seed=inf", "data.options.seed: expected at most"),
        ("model.name=" + "x" * 20_000, "model.name: expected at most 10,000 characters, got 20,000"),
        ("model.decoder=" + "[" * 40 + "]" * 40, "expected at most 16 tables or lists in each other"),
    ],
)
def test_wrong_values_are_refused_with_their_key_and_the_remedy(override: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        small_recipe(override, "log_every=9")  # a name without a section is looked for in all of them
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


def test_every_number_of_a_recipe_has_limits() -> None:
    recipe = read_recipe("tiny")
    fields = [f for section in SECTIONS for f in dataclasses.fields(getattr(recipe, section))]
    numbers = [f for f in fields if any(word in str(f.type) for word in ("int", "float"))]
    assert len(numbers) > 30
    assert numbers == [f for f in fields if "limits" in f.metadata]


def test_wrong_files_are_answered(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"recipe: no 'capsnet_mnits'; did you mean 'capsnet_mnist'\?"):
        read_recipe("capsnet_mnits")
    with pytest.raises(FileNotFoundError, match="no file"):
        read_recipe(str(tmp_path / "none.toml"))
    path = tmp_path / "broken.toml"
    for text in (b"[model\nname=3", b"x = " + b"[" * 200_000, b"x = " + b"9" * 100_000, b"\xff", b"#" * (2 << 20)):
        path.write_bytes(text)
        with pytest.raises(ValueError, match=r"broken\.toml: (not TOML|expected at most)") as caught:
            read_recipe(str(path))
        assert len(str(caught.value)) < 1000


def test_a_recipe_with_a_base_says_what_differs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'base = "discriminative_mnist_l2_norec"\nabout = "mine"\nmodel.options = { rate = 0.5 }\ntrain.epochs = 3\n'
    )
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "next.toml").write_text('base = "../mine.toml"\n[claim]\npaper = "a talk"\n')
    base, mine = read_recipe("discriminative_mnist_l2_norec"), read_recipe(str(tmp_path / "mine.toml"))
    assert (mine.name, mine.about, mine.train.epochs, mine.train.batch) == ("mine", "mine", 3, base.train.batch)
    assert base.model.overrides["options"] == {"penalty": "l2"}
    assert mine.model.overrides == base.model.overrides | {"options": {"rate": 0.5}}  # a value is replaced, not merged
    assert mine.claim == base.claim != Claim()
    other = read_recipe(str(tmp_path / "more" / "next.toml"), ["epochs=4"])
    assert (other.about, other.train.epochs, other.schedule) == ("mine", 4, base.schedule)
    assert other.claim == Claim(paper="a talk")  # as a whole
    assert "base" not in other.to_dict()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "capsnet_mnits"', "^base of mine: no 'capsnet_mnits'; did you mean 'capsnet_mnist'"),
        ('base = "none.toml"', r"^base of mine: no file .*none\.toml$"),
        ('base = "mine.toml"', "^base of mine: mine -> mine goes in a circle$"),
        ('base = "other.toml"', "^base of other: mine -> other -> mine goes in a circle$"),
        ("base = 3", "^base of mine: expected the name of a recipe, got 3$"),
        ('base = "tiny"\ntrain = 3', "^train: expected a table, got 3$"),
        ('base = "tiny"\ntrain.epoch = 3', r"^train\.epoch: no such field; did you mean 'epochs'\?$"),
        ('[modle]\nname = "capsnet_tiny"', "no such section; did you mean 'model'"),
    ],
)
def test_a_wrong_base_or_name_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "other.toml").write_text('base = "mine.toml"')
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_recipe(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("name", ["tiny", "capsnet_mnist_fast", "demo_em", "heinsen_sst2", "em_views_azimuth"])
def test_a_recipe_is_written_whole_and_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(read_recipe(name).to_toml())
    assert read_recipe(str(path)) == read_recipe(name)
    content = tomllib.loads(path.read_text())
    assert set(content) == {"about", *SECTIONS}
    assert len(content["train"]) == len(dataclasses.fields(Train))


def test_fields_that_recipes_had_once_are_read_at_the_values_that_changed_nothing() -> None:
    recipe = read_recipe("tiny", ["epochs=2"])
    stored = json.loads(recipe.to_json())
    assert make_recipe(stored) == recipe
    stored["optimiser"]["sharpness"], stored["schedule"]["staircase"], stored["train"]["rollback"] = 0.0, True, 0
    assert make_recipe(stored) == recipe
    stored["optimiser"]["sharpness"] = 0.5
    with pytest.raises(ValueError, match=r"optimiser\.sharpness: no such field"):
        make_recipe(stored)
