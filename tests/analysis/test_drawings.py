"""Reconstructions, perturbations and segmentation, against the decoder called by hand; measures of known figures."""

import numpy as np
import pytest
import torch
from torch import nn

from flashcaps.analysis import DoesNotApply, Run, dimensions, drawings, perturbations, reconstructions, segmentation
from flashcaps.analysis.drawings import absent_class, borrowed_decoder, correlation, first_of_each, measure
from flashcaps.training.batches import Batch
from flashcaps.training.checkpoint import save_weights
from tests.analysis.conftest import small_run


def by_hand(
    run: Run, row: int, label: int, offset: float = 0.0, dim: int = 0, capsules: nn.Module | None = None
) -> torch.Tensor:
    """One drawing through the decoder's layers alone, of the model's capsules or another's."""
    with torch.no_grad():
        pose = (capsules or run.model).route(run.batch.inputs[row : row + 1]).pose.clone()
        pose[0, label, dim] += offset
        masked = torch.zeros_like(pose)
        masked[0, label] = pose[0, label]
        return run.model.decoder.layers(masked.flatten(1)).view(run.model.image)


def test_reconstructions_are_the_decoders_and_failures_come_twice(run):
    data, _, caption = reconstructions(run, right=3, wrong=2)
    assert (data["label"][:3] == data["prediction"][:3]).all()
    wrong = data["label"][3:] != data["prediction"][3:]
    assert wrong.all()
    assert len(wrong) == 4
    assert data["target"][3::2].tolist() == data["label"][3::2].tolist()
    assert data["target"][4::2].tolist() == data["prediction"][4::2].tolist()
    for k, row in enumerate(data["rows"].tolist()):
        torch.testing.assert_close(data["reconstruction"][k], by_hand(run, row, int(data["target"][k])))
    assert f"{int(run.right.sum())} of 24" in caption


def test_first_of_each_takes_turns():
    labels = torch.tensor([2, 2, 0, 0, 1, 2])
    among = torch.tensor([True, True, True, True, True, False])
    assert first_of_each(labels, among).tolist() == [2, 4, 0, 3, 1]


def test_perturbations_change_one_dimension_of_one_capsule(run):
    data, _, _ = perturbations(run)
    assert data["pictures"].shape == (16, 11, 1, 20, 20)
    assert drawings.OFFSETS[0] == -0.25
    assert drawings.OFFSETS[-1] == 0.25
    for dim, k in ((0, 0), (7, 10), (15, 5)):
        expected = by_hand(run, data["row"], data["label"], drawings.OFFSETS[k], dim)
        torch.testing.assert_close(data["pictures"][dim, k], expected, atol=1e-5, rtol=1e-4)


def test_dimensions_are_measured_on_drawings_of_one_class(run):
    data, _, caption = dimensions(run)
    rows, label = data["rows"], data["label"]
    assert (run.batch.targets[rows] == label).all()
    with torch.no_grad():
        pose = run.model.route(run.batch.inputs[rows]).pose[:, label].double()
    drawn = torch.stack([by_hand(run, int(r), label) for r in rows])
    for m, name in enumerate(drawings.MEASURES):
        values = measure(drawn.mean(1))[name].double()
        expected = np.corrcoef(pose[:, 5], values)[0, 1]
        assert float(data["correlation"][5, m]) == pytest.approx(expected, abs=0.05)
    assert f"{len(rows)} test images" in caption


def test_response_is_the_change_between_the_ends_in_deviations():
    pictures = torch.rand(4, 3, 11, 1, 9, 9)
    got = drawings.response(pictures)
    for d in range(3):
        for m, name in enumerate(drawings.MEASURES):
            one = [[float(measure(pictures[n, d, k, 0])[name]) for k in (0, 10)] for n in range(4)]
            spread = np.std([float(measure(pictures[n, 0, 5, 0])[name]) for n in range(4)], ddof=1)
            assert float(got[d, m]) == pytest.approx(np.mean([b - a for a, b in one]) / spread, rel=1e-3, abs=1e-3)


def pairs() -> Run:
    run = small_run()
    labels = run.output.scores.topk(2, 1).indices
    labels[::5, 1] = absent_class(run.output.scores, labels)[::5]
    targets = torch.zeros(len(labels), 4).scatter_(1, labels, 1.0)
    batch = Batch(run.batch.inputs, targets, labels, None)
    return Run(run.model, batch, rule="top2", class_names=run.class_names)


def test_segmentation_shows_right_neither_and_wrong():
    run = pairs()
    data, _, caption = segmentation(run, right=3, neither=2, wrong=1)
    assert data["kinds"] == ["right"] * 3 + ["neither"] * 2 + ["label", "prediction"]
    for kind, drawn, labels, row in zip(data["kinds"], data["drawn"], data["labels"], data["rows"], strict=True):
        best = set(run.output.scores[row].topk(2).indices.tolist())
        if kind == "neither":
            assert int(drawn[1]) not in best | set(labels.tolist())
        elif kind == "prediction":
            assert set(drawn.tolist()) == best != set(labels.tolist())
        else:
            assert drawn.tolist() == labels.tolist()
    torch.testing.assert_close(data["pictures"][0, 1], by_hand(run, int(data["rows"][0]), int(data["drawn"][0, 1])))
    assert "%" in caption


def test_absent_class_is_neither_label_nor_answer_nor_made_up():
    scores = torch.tensor([[0.9, 0.8, 0.3, 0.2], [0.9, 0.8, 0.3, 0.2], [0.9, 0.8, 0.3, 0.2]])
    labels = torch.tensor([[0, 1], [0, 2], [2, 3]])
    assert absent_class(scores, labels).tolist() == [2, 3, -1]
    assert absent_class(scores[:1], torch.tensor([[2, -1]])).tolist() == [3]


def test_overlay_adds_two_colours_to_white():
    ones = torch.ones(1, 2, 1, 2, 2)
    torch.testing.assert_close(drawings.overlay(ones), torch.ones(1, 3, 2, 2))
    ones[:, 1] = 0
    torch.testing.assert_close(drawings.overlay(ones)[0, :, 0, 0], torch.tensor(drawings.TINTS[0]))


def bar(width: int, height: int, side: int = 40, slope: float = 0.0) -> torch.Tensor:
    """A filled box in the middle, its rows moved right by `slope` per row up."""
    picture = torch.zeros(side, side)
    for r in range(height):
        y = (side - height) // 2 + r
        x = (side - width) // 2 + round(slope * (height / 2 - r))
        picture[y, x : x + width] = 1
    return picture


@pytest.mark.parametrize(("width", "height"), [(3, 20), (4, 12), (9, 15)])
def test_a_box_has_its_width_height_and_area(width, height):
    got = measure(bar(width, height))
    assert float(got["area"]) == width * height
    assert float(got["width"]) == pytest.approx((width**2 - 1) ** 0.5, rel=1e-4)  # of pixels, not of a continuous box
    assert float(got["height"]) == pytest.approx((height**2 - 1) ** 0.5, rel=1e-4)
    assert float(got["skew"]) == pytest.approx(0, abs=1e-5)


def test_thickness_is_that_of_a_long_stroke():
    thick = [float(measure(bar(w, 34))["thickness"]) for w in (2, 4, 6)]
    assert thick == pytest.approx([2, 4, 6], rel=0.2)
    assert thick == sorted(thick)


@pytest.mark.parametrize("slope", [-0.5, 0.5, 1.0])
def test_skew_is_the_slope(slope):
    assert float(measure(bar(4, 20, slope=slope))["skew"]) == pytest.approx(slope, rel=0.05)


def test_nothing_drawn_measures_finite():
    assert all(torch.isfinite(v).all() for v in measure(torch.zeros(2, 8, 8)).values())


def test_correlation_is_numpys():
    x, y = torch.randn(3, 20, dtype=torch.float64), torch.randn(3, 20, dtype=torch.float64)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(correlation(x, y), expected, atol=1e-9)
    assert float(correlation(torch.ones(5), torch.randn(5))) == 0
    assert float(correlation(torch.full((784,), 0.3), torch.full((784,), 0.7))) == 0  # their means are rounded
    torch.testing.assert_close(correlation(1 + 1e-3 * x, y), correlation(x, y))


def test_borrowed_decoder_draws_the_other_models_capsules(tmp_path):
    run = small_run()
    run.batch = run.batch._replace(targets=run.output.scores.argmax(1))
    with pytest.raises(DoesNotApply, match="without a decoder"):
        borrowed_decoder(run)
    other = small_run(decoder=False).model
    shared = {k: x for k, x in run.model.state_dict().items() if not k.startswith("decoder")}
    shared["capsules.layers.0.weight"] = shared["capsules.layers.0.weight"] * 1.1  # other poses, the same answers
    other.load_state_dict(shared)
    save_weights(tmp_path / "last.safetensors", other, {})
    run.records = [{"folder": str(tmp_path)}]
    data, _, caption = borrowed_decoder(run)
    k = int(data["rows"][0])
    expected = by_hand(run, k, int(run.batch.targets[k]), capsules=other)
    torch.testing.assert_close(data["borrowed"][0], expected)
    assert not torch.equal(data["own"], data["borrowed"])
    assert "without any" in caption
