"""What is said of a model is what the model does."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest
import torch

import flashcaps
from flashcaps.data import to_float
from flashcaps.demo.centering import fit
from flashcaps.demo.explainer import Explainer
from flashcaps.demo.inputs import Refused
from flashcaps.routing import Routed
from tests.conftest import assert_near
from tests.demo.served import ALGORITHMS, IMAGES, ITERATIVE, LABELS, models

ROW = 13


def explainer(algorithm: str) -> Explainer:
    return models()[f"demo_{algorithm}"]


def routed(algorithm: str, row: int = ROW) -> dict[str, Any]:
    x = explainer(algorithm)
    return x.route(fit(IMAGES[row], *x.image[1:]))


def pixels(text: str, shape: Any) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy()).view(*shape)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "pairs"])
def test_numbers_are_the_models_own(algorithm: str) -> None:
    x, found = explainer(algorithm), routed(algorithm)
    with torch.no_grad():
        batch = to_float(fit(IMAGES[ROW], *x.image[1:]))[None, None]
        out = x.model(batch)
        whole: Routed = x.model.route(batch, coupling=True, record=True)
    assert_near(torch.tensor(found["scores"]), out.scores[0].tolist(), 1e-4)
    assert_near(torch.tensor(found["poses"]), out.routed.pose[0].tolist(), 1e-4)
    assert_near(torch.tensor(found["lengths"]), out.routed.pose[0].norm(dim=-1).tolist(), 1e-4)
    types, h, w = x.grid
    assert whole.history is not None
    for step, own in zip(found["routing"]["steps"], whole.history, strict=True):
        by_cell = own.coupling[0].view(types, h * w, -1).sum(0)
        assert_near(torch.tensor(step["coupling"]), by_cell.tolist(), 1e-4)
    k = found["predicted"][0]
    drawn = x.model.reconstruct(out.routed, torch.tensor([k]))[0, 0]
    assert_near(pixels(found["reconstructions"][0]["image"], x.image[1:]).float() / 255, drawn.tolist(), 0.003)


@pytest.mark.parametrize("algorithm", ITERATIVE)
def test_couplings_sum_to_one_and_sharpen(algorithm: str) -> None:
    for row in (0, 7, ROW, 29):
        routing = routed(algorithm, row)["routing"]
        types, cells = explainer(algorithm).grid[0], math.prod(routing["grid"])
        assert not routing["signed"]
        assert routing["iterations"] == len(routing["steps"]) == 3
        for step in routing["steps"]:
            assert step["coupling_sum"] == pytest.approx([1, 1], abs=1e-4)
            table = torch.tensor(step["coupling"])
            assert table.shape == (cells, 10)
            assert_near(table.sum(1), float(types), 1e-3)
        entropy = [step["entropy"] for step in routing["steps"]]
        assert entropy[0] == pytest.approx(math.log(10), abs=1e-4)
        assert entropy[0] > entropy[1] > entropy[2]


def test_discriminative_coefficients_are_signed_and_the_same_for_every_image() -> None:
    first, second = (routed("discriminative", row)["routing"] for row in (0, ROW))
    assert first["signed"]
    assert len(first["steps"]) == 1
    assert first["steps"][0]["coupling"] == second["steps"][0]["coupling"]
    coefficients = explainer("discriminative").model.capsules.layers[-1].coefficients
    assert coefficients.min() < 0 < coefficients.max()
    assert first["steps"][0]["coupling_sum"] != pytest.approx([1, 1], abs=1e-2)
    assert any(line["weight"] < 0 for lines in first["top"][0] for line in lines)
    assert explainer("discriminative").info()["iterations"] is None


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "pairs"])
def test_flow_is_coupling_times_presence_and_the_last_step_is_the_answer(algorithm: str) -> None:
    found, x = routed(algorithm), explainer(algorithm)
    routing = found["routing"]
    there = torch.tensor(routing["presence"])
    assert there.min() >= 0
    for step in routing["steps"]:
        flow = torch.tensor(step["flow"])
        if not routing["signed"]:
            assert_near(flow.sum(1), there.tolist(), 1e-3)
        assert len(step["agreement"]) == len(step["activation"]) == x.parents
        assert torch.tensor(step["agreement"]).abs().max() <= 1
    for lines in routing["top"][-1]:
        assert 0 < len(lines) <= 24
        assert all(0 <= line["cell"] < len(there) and 0 <= line["type"] < x.grid[0] for line in lines)
    last = torch.tensor(found["routing"]["steps"][-1]["activation"])
    assert_near(last, found["activation"], 1e-4)
    assert 0 <= last.min() <= last.max() <= 1
    assert found["predicted"][0] == int(last.argmax())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_samples_are_recognised(algorithm: str) -> None:
    answers = [routed(algorithm, row)["predicted"][0] for row in range(0, 30, 3)]
    assert answers == LABELS[::3].tolist()


def test_two_digits_are_taken_apart() -> None:
    x = explainer("pairs")
    assert x.pairs
    first, second = torch.zeros(2, 36, 36, dtype=torch.uint8)
    first[2:30, 1:29], second[7:35, 8:36] = IMAGES[1], IMAGES[22]
    found = x.route((first.int() + second.int()).clamp(max=255).byte())
    assert sorted(found["predicted"]) == [0, 7]
    drawn = {r["class"]: pixels(r["image"], (36, 36)).float().flatten() for r in found["reconstructions"]}
    for k, own, other in ((0, first, second), (7, second, first)):
        same, crossed = (torch.cosine_similarity(drawn[k], y.float().flatten(), 0) for y in (own, other))
        assert same > crossed + 0.2


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "pairs"])
def test_the_slider_draws_what_the_decoder_draws(algorithm: str) -> None:
    x, found = explainer(algorithm), routed(algorithm)
    k = found["predicted"][0]
    still = x.decode(found["poses"][k], k)
    assert (pixels(still["image"], still["shape"]).int()
            - pixels(found["reconstructions"][0]["image"], still["shape"]).int()).abs().max() <= 1  # fmt: skip
    rows = x.dimensions(found["poses"][k], k)
    assert rows["offsets"][5] == 0
    assert rows["offsets"][-1] == -rows["offsets"][0] == x.reach
    assert [row["dimension"] for row in rows["rows"]] == list(range(16))
    for row in rows["rows"]:
        assert len(row["images"]) == 11
        assert row["images"][5] == still["image"]
        assert row["stands_for"] in (None, "stroke thickness", "slant", "width", "height", "amount of ink")
    assert any(row["images"][0] != row["images"][10] for row in rows["rows"])
    moved = list(found["poses"][k])
    moved[3] += rows["offsets"][-1]
    assert x.decode(moved, k)["image"] == rows["rows"][3]["images"][10]


def test_a_dimension_is_named_after_what_it_moves() -> None:
    """A bar that leans from left to right, and one that stays."""
    x = explainer("dynamic")
    bars = torch.zeros(1, 11, 1, 28, 28)
    for n in range(11):
        for row in range(4, 24):
            column = 14 + round((n - 5) / 5 * 0.5 * (14 - row))
            bars[0, n, 0, row, column - 1 : column + 2] = 1
    assert x.name_rows(bars) == ["slant"]
    assert x.name_rows(bars[:, :1].expand(1, 11, 1, 28, 28)) == [None]


def test_where_capsules_look() -> None:
    """Stem 3 x 3 and two 3 x 3 of a block, the first with stride 2, then primary 3 x 3 with stride 2: by hand."""
    x = explainer("dynamic")
    assert x.grid == (6, 6, 6)
    assert x.field == {"size": 13, "stride": 4, "offset": -4}
    y = Explainer("plain", flashcaps.create_model("capsnet_tiny"), IMAGES)
    assert y.grid == (8, 4, 4)
    assert y.field == {"size": 13, "stride": 4, "offset": 0}


def test_any_capsule_network_of_images_can_be_explained() -> None:
    overrides: dict[str, Any] = {"backbone": {"channels": 8}, "primary": {"types": 3}, "image": (2, 32, 32)}
    x = Explainer("stereo", flashcaps.create_model("em_smallnorb", **overrides), IMAGES)
    found = x.route(fit(IMAGES[0], 32, 32))
    assert found["reconstructions"] == []
    assert x.field["size"] > 5
    assert len(found["routing"]["steps"][0]["coupling"]) == math.prod(found["routing"]["grid"])
    assert x.info()["decoder"] is False
    hidden = Explainer("deep", flashcaps.create_model("capsnet_tiny", hidden=[12]), IMAGES)
    assert hidden.grid == (12, 1, 1)
    assert len(hidden.route(IMAGES[0])["routing"]["steps"][0]["coupling"]) == 1


def test_errors_are_one_line() -> None:
    with pytest.raises(ValueError, match="plain: expected a capsule network; cnn_mnist has no capsules"):
        Explainer("plain", flashcaps.create_model("cnn_mnist"), IMAGES)
    x = explainer("dynamic")
    for bad, message in (([0.0] * 15, "pose: expected 16 numbers, got 15"), ([0.0] * 16, "class: expected 0 to 9")):
        with pytest.raises(Refused, match=message):
            x.decode(bad, 10)
    with pytest.raises(Refused, match=r"demo_dynamic expects 28 x 28 \(height x width\), got 36 x 36"):
        x.route(torch.zeros(36, 36, dtype=torch.uint8))
    blind = Explainer("blind", flashcaps.create_model("capsnet_tiny", decoder=False), IMAGES)
    with pytest.raises(Refused, match="no decoder"):
        blind.decode([0.0] * 16, 0)
