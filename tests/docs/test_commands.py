"""The commands of every page, run as printed: training in its trial form (`--dev`, one step of four
examples), data sets that are not here in the shape of theirs."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flashcaps.cli import main
from flashcaps.data import Dataset, load_data
from flashcaps.training import loader, loop
from flashcaps.training.recipe import Recipe, list_recipes
from flashcaps.training.run_folder import RunFolder
from tests.docs.test_guides import PAGES, commands
from tests.fake_data import fake_dataset
from tests.own_pictures import write_pictures
from tests.small_transformer import write_gpt2, write_texts, write_transformer

# What is not run here, and why.
NOT_RUN = {
    r"pip ": "an environment of its own; make release installs the wheel in one",
    r"make ": "a target of the Makefile, most of which run for minutes; test, train and release run from clean clones",
    r"torchrun ": "eight GPUs or two machines; tests/faults runs torchrun with processes of this machine",
    r"flashcaps demo": "a server; tests/demo starts it and builds its folder",
    r"flashcaps bench": "minutes; tests/benchmarks runs it on toys",
    r"flashcaps data ": "the network; tests/data serves the files itself",
    r"flashcaps convert |.* cifar10\.safetensors": "files of other repositories; tests/deploy/test_convert.py has some",
    r".* --dataset someone/": "the network; tests/data reads local files by the same option",
    r".* --backbone timm:": "timm, which is not installed; tests/training/test_autosize.py has one in its place",
    r".* --callback wandb": "Weights & Biases and TensorBoard, which are not installed; tests/training has theirs",
    r".* --resume": "a run that was stopped; tests/training/test_loop.py stops and resumes one",
    r"python -m tools\.publish": "a whole run; tests/tools/test_publish.py publishes one",
}
LOCAL = ("digits", "images", "table", "numbers", "text")  # data that are here


def to_run() -> dict[str, list[str]]:
    """The commands of each page that are run."""
    known = "|".join(f"(?:{pattern})" for pattern in NOT_RUN)
    found = {page: [line for line in commands(page) if not re.match(known, line)] for page in PAGES}
    return {page: lines for page, lines in found.items() if lines}


def flashcaps(*words: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 0, shlex.join(words)
    for run in Path("runs").glob("dev-*"):  # of a trial, in the place of the whole run
        if not run.with_name(run.name.removeprefix("dev-")).exists():
            run.rename(run.with_name(run.name.removeprefix("dev-")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader of the pages has: a digit, pictures, a run, tables, texts and transformers."""

    def load(name: str, root: Any = None, **options: Any) -> Dataset:
        if name in LOCAL:
            return load_data(name, root, **options)
        data = fake_dataset(name)
        return replace(data, validation=data.test) if "held_out_azimuths" in options else data

    def make_run(recipe: Recipe, *given: Any) -> RunFolder:
        run = made(recipe, *given)
        held = replace(recipe.data, validation=min(recipe.data.validation, 16))
        run.recipe = replace(recipe, data=held, train=replace(recipe.train, batch=4))
        return run

    made = loop.make_run
    monkeypatch.setattr(loader, "load_data", load)
    monkeypatch.setattr(loop, "make_run", make_run)
    monkeypatch.setattr(loop, "DEV_STEPS", 1)
    monkeypatch.setattr(loader, "DEV_EXAMPLES", 40)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(load_data("digits").test.images[0, 0].numpy()).save("digit.png")
    for name in ("pets", "pictures"):
        write_pictures(tmp_path / name, 60)
    files = sorted(Path("pets").rglob("*.png"))
    Path("scenes.csv").write_text("file,label\n" + "".join(f"{file},{file.parent.name}\n" for file in files))
    numbers = np.random.default_rng(0).normal(size=(60, 2)) + np.arange(60)[:, None] % 3
    rows = (f"{width},{height},{k % 3}\n" for k, (width, height) in enumerate(numbers))
    Path("iris.csv").write_text("width,height,label\n" + "".join(rows))
    write_texts(Path("reviews.csv"), 60)
    Path("more.csv").write_text("text\na quiet film\n")
    for name in ("DIR", "FOLDER"):
        write_transformer(tmp_path / name)
    write_gpt2(tmp_path / "gpt2-large")


@pytest.mark.slow
@pytest.mark.parametrize("page", to_run())
@pytest.mark.usefixtures("folder")
def test_they_run_as_printed(page: str) -> None:
    for line in sorted(to_run()[page], key=lambda line: "flashcaps train" not in line):  # others look at what it leaves
        words = shlex.split(line, comments=True)[1:]
        for name, seed in re.findall(r"runs/(\w+)-(\d)\b", line):
            if name in list_recipes() and not Path("runs", f"{name}-{seed}").exists():
                flashcaps("train", name, "--seed", seed, "--dev")
        if "runs/shapes" in line:  # which Python has trained above it
            flashcaps("train", "--images", "pets", "--out", "runs/shapes", "--dev")
        flashcaps(*words, *["--dev"] * (words[0] == "train" and "--dev" not in words))


def test_what_is_not_run_is_on_a_page() -> None:
    lines = [line for page in PAGES for line in commands(page)]
    assert not [pattern for pattern in NOT_RUN if not any(re.match(pattern, line) for line in lines)]
