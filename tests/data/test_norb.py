import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from flashcaps.data import Dataset, load_data
from flashcaps.data.norb import hold_out_views
from flashcaps.training.loop import RunOptions, train
from flashcaps.training.recipe import list_recipes, read_recipe
from tests.data.conftest import TOYS
from tests.data.files import NORB, norb_bytes, write_norb


@pytest.fixture
def files(toys: Dataset, tmp_path: Path) -> Path:
    """A data root with the toys as smallNORB's files."""
    write_norb(tmp_path / "smallnorb", toys)
    return tmp_path


def test_reads_pairs_categories_and_the_four_further_labels(files: Path, toys: Dataset) -> None:
    data = load_data("smallnorb", files)
    assert (data.classes, data.shape, data.class_names) == (5, (2, 16, 16), toys.class_names)
    for read, made in ((data.train, toys.train), (data.test, toys.test)):
        assert torch.equal(read.images, made.images)
        assert torch.equal(read.labels, made.labels)
        assert list(read.info) == ["instance", "elevation", "azimuth", "lighting"]
        assert all(torch.equal(read.info[name], made.info[name]) for name in made.info)


@pytest.mark.parametrize(("kind", "change", "message"), [
    ("dat", lambda raw: raw[:6], "a header of 24 bytes, found 6 bytes"),
    ("cat", lambda raw: raw[:-1], "800 bytes of 200, found 799"),
    ("cat", lambda raw: norb_bytes(np.zeros(6, np.uint8)), "magic 544c3d1e01000000 .*, found 554c3d1e01000000"),
    ("cat", lambda raw: raw[:20] + struct.pack("<i", 5) + raw[24:], "labels from 0 to 4, found"),
    ("info", lambda raw: raw[:20] + struct.pack("<i", 99) + raw[24:], "instance from 0 to 9, found"),
    ("cat", lambda raw: norb_bytes(np.zeros(5, np.int32)), "200 labels, one per image, found 5"),
    ("info", lambda raw: norb_bytes(np.zeros((6, 3), np.int32)), "4 columns, found 3"),
    ("dat", lambda raw: norb_bytes(np.zeros((6, 1, 9, 9), np.uint8)), "stereo pairs"),
])  # fmt: skip
def test_values_that_do_not_fit_are_refused(files, kind, change, message):
    path = files / "smallnorb" / f"{NORB['train']}-{kind}.mat.gz"
    raw = path.with_suffix("")
    path.write_bytes(gzip.compress(change(raw.read_bytes())))
    raw.unlink()
    with pytest.raises(ValueError, match=rf"training-{kind}.mat.gz: expected {message}"):
        load_data("smallnorb", files)


@pytest.mark.parametrize(("held", "message"), [
    ({"held_out_elevations": [9]}, "held_out_elevations: expected steps from 0 to 8"),
    ({"held_out_azimuths": [-1]}, "held_out_azimuths: expected steps from 0 to 17"),
    ({"held_out_azimuths": [0, 5]}, r"held_out_azimuths.* got \[0, 5\], \[\]: no train examples"),
    ({"held_out_azimuths": [7]}, "no novel examples"),
])  # fmt: skip
def test_wrong_steps_are_named(toys: Dataset, held: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hold_out_views(toys, **held)


def test_held_out_viewpoints_are_the_test_and_familiar_ones_of_the_same_toys_the_validation(toys: Dataset) -> None:
    held = hold_out_views(toys, held_out_elevations=[8])
    assert held.test.info["elevation"].unique().tolist() == [8]
    for split in (held.train, held.validation):
        assert split.info["elevation"].unique().tolist() == [0]
    instances = [set(split.info["instance"].tolist()) for split in (held.train, held.validation, held.test)]
    assert instances[1] == instances[2]
    assert not instances[0] & instances[1]
    assert (held.classes, held.shape) == (toys.classes, toys.shape)
    assert hold_out_views(toys) is toys
    both = hold_out_views(toys, held_out_azimuths=[5], held_out_elevations=[8])
    assert [len(split) for split in (both.train, both.validation, both.test)] == [50, 50, 150]
    assert both.train.info["azimuth"].unique().tolist() == [0]


def test_both_data_sets_take_the_same_options(files: Path, toy_root: Path) -> None:
    read = load_data("smallnorb", files, held_out_azimuths=[5])
    made = load_data("synthetic_norb", toy_root, held_out_azimuths=[5], **TOYS)
    for a, b in ((read.train, made.train), (read.validation, made.validation), (read.test, made.test)):
        assert len(a) == 100
        assert torch.equal(a.images, b.images)


def test_a_run_has_familiar_viewpoints_in_its_curve_and_novel_ones_as_its_test(files: Path, tmp_path: Path) -> None:
    small = ["data.name=smallnorb", "data.held_out_azimuths=[5]", "data.resize=0", "augment.crop=16",
             "model.image=[2,16,16]", "epochs=6", "batch=10", "evaluate_every=3", "precision=fp32"]  # fmt: skip
    outcome = train(read_recipe("cnn_views_azimuth", small), RunOptions("cpu", str(tmp_path / "run"), str(files)))
    curve, result = outcome.result["curve"], outcome.result
    assert [point["split"] for point in curve] == ["validation", "validation"]
    assert curve[-1]["step"] == 6 * 10  # the weights that are tested, too
    assert curve[-1]["error"] < 80  # it learned: chance is 80 %
    assert (result["examples"], result["split"]) == (100, "test")
    assert result["metric"] == "test_error_percent"


def test_the_recipes_hold_out_what_the_em_paper_did() -> None:
    names = [name for name in list_recipes() if "_views_" in name]
    assert len(names) == 10
    schedules = set()
    for name in names:
        recipe = read_recipe(name)
        azimuth = {"held_out_azimuths": list(range(3, 15))}  # 60 to 280 degrees; trained on 300 to 40
        elevation = {"held_out_elevations": list(range(3, 9))}  # 45 to 70; trained on 30, 35 and 40
        assert recipe.data.options == (azimuth if name.endswith("azimuth") else elevation)
        schedules.add((recipe.train, recipe.schedule, recipe.optimiser.kind))
        same_input = read_recipe(name.replace("heinsen", "cnn_whole").replace("em_", "cnn_").replace("capsnet", "cnn"))
        assert (recipe.augment, recipe.data) == (same_input.augment, same_input.data)  # as a CNN has it
    assert len(schedules) == 1  # one for all models
