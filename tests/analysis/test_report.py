"""Files, report and command line: valid pictures that are not blank, nothing from the network, one line why not."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import flashcaps
from flashcaps.analysis import FIGURES, DoesNotApply, Run, compare, darken, open_run, write_figures
from flashcaps.analysis.report import choose, title_of
from flashcaps.analysis.style import FAINT, IN_THE_DARK, INK, PAPER
from flashcaps.training.batches import Batch
from flashcaps.training.checkpoint import save_weights
from flashcaps.training.recipe import read_recipe
from tests.analysis.conftest import small_run
from tests.analysis.test_comparisons import tiny
from tests.analysis.test_drawings import pairs
from tests.demo.page_server import Visit

QUICK = ["reconstructions", "margin", "segmentation"]
SOURCE = r'\s(?:src|srcset|href)="([^"]+)"'


def test_files_are_pictures_and_the_report_is_whole(run, tmp_path):
    told = {}
    path = write_figures(run, tmp_path, QUICK, told.__setitem__)
    for name in ("reconstructions", "margin"):
        for dark in ("", "-dark"):
            pixels = np.asarray(Image.open(tmp_path / f"{name}{dark}.png").convert("L"))
            assert pixels.std() > 5
            assert "<svg" in (tmp_path / f"{name}{dark}.svg").read_text()
        light, dark_one = (np.asarray(Image.open(tmp_path / f"{name}{d}.png").convert("L")) for d in ("", "-dark"))
        assert light[0, 0] == 255
        assert dark_one[0, 0] < 40
    assert not (tmp_path / "segmentation.png").exists()
    assert told == {"reconstructions": "", "margin": "", "segmentation": told["segmentation"]}
    assert "two digits" in told["segmentation"]
    text = path.read_text()
    assert told["segmentation"] in text
    sources = re.findall(SOURCE, text)
    assert len([s for s in sources if s.startswith("data:image/png;base64,")]) == 4
    assert all(s.startswith(("data:", "#")) for s in sources)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)


@pytest.mark.parametrize("name", ["reconstructions", "margin"])
def test_nothing_is_clipped(run, name):
    figure = FIGURES[name](run).figure
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0) >= 0
    assert drawn.x1 <= width
    assert drawn.y1 <= height
    for axis in figure.axes:
        for artist in (*axis.lines, *axis.patches):
            inner = artist.get_window_extent()
            assert inner.y1 <= axis.bbox.y1 + 1
            assert inner.y0 >= axis.bbox.y0 - 1


@pytest.mark.parametrize("overrides", [
    {"decoder": False, "image": (1, 20, 28)}, {"classes": 1}, {"routing": "attention"},
    {"routing": "em", "image": (3, 20, 20)}, {"routing": "discriminative", "image": (2, 20, 20)},
], ids=str)
def test_whatever_the_model_a_figure_is_drawn_or_says_why_not(overrides):
    run, drawn, reasons = small_run(8, **overrides), set(), []
    for name in set(FIGURES) - {"cost", "step_time", "animation", "vote_distances", "perturbations", "agreement"}:
        try:
            assert len(FIGURES[name](run).caption) > 40
            drawn.add(name)
        except DoesNotApply as why:
            reasons.append(str(why))
    assert all(len(why.splitlines()) == 1 for why in reasons)
    assert {"architecture", "iterations"} <= drawn
    assert ("reconstructions" in drawn) == (run.model.decoder is not None)
    assert ("parse_tree" in drawn) == (run.model.classes > 1)


DRAWN = ("reconstructions", "perturbations", "dimensions")


@pytest.mark.parametrize(("names", "run_of", "message"), [
    (DRAWN, lambda: small_run(4, decoder=False), "decoder"),
    (DRAWN, pairs, "several"),
    (DRAWN, lambda: Run(small_run(4).model), "test examples"),
    (("segmentation",), small_run, "two digits"),
    (("parse_tree", "agreement"), lambda: small_run(2, classes=1), "two class capsules"),
    (("credit",), small_run, "text"),
    (("pose_trajectories", "pose_azimuth", "pose_elevation"), small_run, "toys"),
    (("routing_logits",), lambda: small_run(2, routing="em"), "em"),
    (("margin",), lambda: small_run(2, routing="attention"), "lengths"),
    (("sparsity",), small_run, "dynamic"),
    (("convergence", "error_curves"), lambda: tiny([]), "beside"),
    (("ablation",), lambda: tiny([]), r"attention \(attention_simple_cifar10\), A: no LayerNorm"),
    (("diverse",), lambda: tiny([]), r"DiverseMultiMNIST.*not measured yet.*cnn_diverse_fc"),
])
def test_figures_say_what_they_need(names, run_of, message):
    for name in names:
        with pytest.raises(DoesNotApply, match=message):
            FIGURES[name](run_of())


def test_a_plain_network_has_an_architecture_can_be_attacked_and_has_one_line_for_the_rest(tmp_path):
    model = flashcaps.create_model("cnn_smallnorb").eval()
    batch = small_run(2, image=(2, 32, 32)).batch
    told = {}
    write_figures(Run(model, Batch(batch.inputs, batch.targets)), tmp_path, (), told.__setitem__)
    assert [n for n, why in told.items() if not why] == ["architecture", "adversarial"]
    assert not [why for why in told.values() if why.startswith("failed")]


def test_an_error_in_one_figure_leaves_the_others(run, tmp_path, monkeypatch):
    monkeypatch.setitem(FIGURES, "margin", lambda run: 1 / 0)
    told = {}
    write_figures(run, tmp_path, ["margin", "reconstructions"], told.__setitem__)
    assert told == {"margin": "failed: ZeroDivisionError: division by zero", "reconstructions": ""}


def test_axes_have_names(run):
    for name in ("margin", "agreement", "routing_logits", "iterations", "dimensions"):
        for axis in FIGURES[name](run).figure.axes:
            shared = any(axis in group and len(group) > 1 for group in
                         [axis.get_shared_x_axes().get_siblings(axis), axis.get_shared_y_axes().get_siblings(axis)])
            assert shared or (axis.get_xlabel() and axis.get_ylabel()), name


def test_two_runs_side_by_side(run, tmp_path):
    other = small_run(8, decoder=False)
    path = compare(run, other, tmp_path, QUICK)
    text = path.read_text()
    assert (tmp_path / "left" / "reconstructions.png").exists()
    assert not (tmp_path / "right" / "reconstructions.png").exists()
    assert (tmp_path / "right" / "margin.png").exists()
    assert "a decoder is needed" in text
    assert len(re.findall(SOURCE, text)) == 6 + 2  # three drawn, light and dark, and two links


def test_darken_swaps_ink_and_paper(run):
    figure = FIGURES["margin"](run).figure
    assert figure.get_facecolor()[:3] == (1, 1, 1)
    darken(figure)
    axis = figure.axes[0]
    from matplotlib.colors import to_hex

    assert to_hex(figure.get_facecolor()) == IN_THE_DARK[PAPER]
    assert to_hex(axis.yaxis.label.get_color()) == IN_THE_DARK[INK]
    assert to_hex(axis.get_yticklabels()[0].get_color()) == IN_THE_DARK[INK]
    dots = darken(FIGURES["parse_tree"](run).figure).axes[0].collections[0]  # an artist of many colours
    assert to_hex(dots.get_facecolor()[0]) == IN_THE_DARK[FAINT]


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'parse_tree'"):
        choose(["parsetree"])
    assert choose([]) == list(FIGURES)
    assert all(len(title_of(n)) > 20 for n in FIGURES)


def test_a_checkpoint_opens_with_its_data_or_says_what_is_missing(tmp_path):
    model = small_run(2, image=(1, 28, 28), classes=10).model
    recipe = read_recipe("tiny", ["model.classes=10", "crop=28"]).to_dict()
    save_weights(tmp_path / "last.safetensors", model, {"recipe": recipe, "step": 7})
    run = open_run(tmp_path, results=tmp_path, count=20)
    assert run.batch.inputs.shape == (20, 1, 28, 28)
    assert run.class_name(3) == "3"
    assert (len(run.split), run.crop) == (1000, 28)  # for figures of all toys
    elsewhere = read_recipe("capsnet_mnist").to_dict()
    save_weights(tmp_path / "last.safetensors", model, {"recipe": elsewhere, "step": 7})
    run = open_run(tmp_path / "last.safetensors", data=str(tmp_path), results=tmp_path)
    assert run.batch is None
    assert "mnist" in run.missing


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_of_two_checkpoints_opens_without_a_network(chromium: Any, tmp_path: Path, scheme: str) -> None:
    names = ["architecture", "reconstructions", "margin", "parse_tree", "segmentation"]
    path = compare(small_run(8), small_run(8, decoder=False), tmp_path, names)
    one = Visit(chromium, path.as_uri(), path.parent, size=(900, 800), color_scheme=scheme)
    one.page.goto(one.url)
    one.page.wait_for_load_state("networkidle")
    assert one.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    pictures = one.page.evaluate(
        "[...document.images].map(i => ({alt: i.alt, width: i.naturalWidth, dark: i.currentSrc !== i.src}))"
    )
    one.context.close()
    assert one.complaints == []
    assert len(pictures) == 4 + 3  # segmentation does not apply, nor reconstructions to the second, and both say so
    assert all(picture["width"] > 300 and picture["alt"] for picture in pictures)
    assert all(picture["dark"] == (scheme == "dark") for picture in pictures)
