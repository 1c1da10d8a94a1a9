"""Votes, logits, margin, agreement and the architecture, against loops and plain sums."""

import dataclasses
import math

import pytest
import torch

import flashcaps
from flashcaps.analysis import Run, agreement, margin, routing_logits, sparsity, vote_distances
from flashcaps.analysis.architecture import architecture
from flashcaps.analysis.routing import agree, curve, entropy, spread_of, weighted_distances
from flashcaps.routing import ROUTING
from tests.analysis.conftest import small_run


def test_distances_to_the_weighted_mean():
    votes, weights = torch.randn(5, 2, 3), torch.rand(2, 5, 2)
    got = weighted_distances(votes, weights)
    for t in range(2):
        for j in range(2):
            mean = sum(weights[t, i, j] * votes[i, j] for i in range(5)) / weights[t, :, j].sum()
            for i in range(5):
                torch.testing.assert_close(got[t, i, j], (votes[i, j] - mean).norm())
    expected = sum(got[0, i, 1] * weights[0, i, 1] for i in range(5)) / weights[0, :, 1].sum()
    torch.testing.assert_close(spread_of(got, weights)[0, 1], expected)


def test_vote_distances_show_a_right_and_a_wrong_image(run):
    data, _, _ = vote_distances(run)
    assert run.right[data["rows"]["right"]]
    assert not run.right[data["rows"]["wrong"]]
    assert data["wrong"]["classes"][0] == int(run.batch.targets[data["rows"]["wrong"]])
    torch.testing.assert_close(data["right"]["weight"].sum(-1), torch.ones(3, data["right"]["weight"].shape[1]))


def test_routing_logits_settle(run):
    data, figure, caption = routing_logits(run)
    assert data["change"].shape == (1, 6)
    assert figure.axes[0].get_yscale() == "log"
    assert "settle" in caption


def test_points_that_a_run_logged_are_drawn(run):
    points = [{"kind": "routing", "step": s, "change": [0.1 / s] * 6} for s in (1, 2, 5, 10, 20, 50)]
    data, figure, caption = routing_logits(dataclasses.replace(run, metrics=points))
    assert data["steps"] == [0, 1, 2, 5, 10, 20, 50]
    assert figure.axes[0].get_xscale() == "symlog"
    assert "7 points over training, from step 0 to 50, 6 of them on training images" in caption


def test_margin_is_the_papers_equation(run):
    data, _, _ = margin(run)
    x = data["length"]
    torch.testing.assert_close(data["present"], (0.9 - x).clamp(min=0) ** 2)
    torch.testing.assert_close(data["absent"], 0.5 * (x - 0.1).clamp(min=0) ** 2)
    assert len(data["lengths"]["present"]) == 24
    assert len(data["lengths"]["absent"]) == 24 * 3


def test_entropy_of_the_undecided_and_the_decided():
    assert float(entropy(torch.full((1, 3, 4), 0.25))) == pytest.approx(1)
    assert float(entropy(torch.eye(4)[None])) == pytest.approx(0, abs=1e-5)
    half = torch.tensor([[[0.5, 0.5, 0, 0]]])
    assert float(entropy(half)) == pytest.approx(math.log(2) / math.log(4))


def test_votes_that_agree():
    same = torch.ones(1, 3, 2, 4)
    assert float(agree(same, torch.full((1, 3, 2), 0.5))) == pytest.approx(1)
    against = torch.tensor([1.0, 1.0, -1.0])[None, :, None, None] * same
    assert float(agree(against, torch.full((1, 3, 2), 0.5))) == pytest.approx(1 / 3)


@torch.no_grad()
def test_agreement_covers_every_algorithm(run):
    data, _, _ = agreement(run, iterations=3)
    assert set(data) == set(ROUTING)
    for values in data.values():
        assert float(values["entropy"][0]) == pytest.approx(1, abs=1e-4)  # all begin undecided
        assert values["agreement"].shape == (3,)
    _, top = run.class_votes(run.batch._replace(inputs=run.batch.inputs[:16]), 3)
    expected = [float(entropy(s.coupling)) for s in top.steps]
    assert data["dynamic"]["entropy"].tolist() == pytest.approx(expected, rel=1e-5)


def test_architecture_counts_every_parameter_once(run):
    data, _, caption = architecture(run)
    total = sum(p.numel() for p in run.model.parameters())
    assert sum(s.parameters for s in data["stages"]) == total == data["parameters"]
    by_name = {s.name: s for s in data["stages"]}
    assert by_name["input"].shape == (1, 20, 20)
    assert by_name["capsules 1"].shape == (4, 16)
    assert by_name["decoder 3"].shape == (1, 20, 20)
    assert f"{total:,}" in caption


@pytest.mark.parametrize("name", ["cnn_diverse_pool", "attention_simple_cifar10", "heinsen_smallnorb", "heinsen_sst2"])
def test_architecture_of_other_networks(name):
    overrides = {"layers": 3, "width": 8} if "sst" in name else {}
    model = flashcaps.create_model(name, **overrides)
    data, _, _ = architecture(Run(model))  # without examples
    assert sum(s.parameters for s in data["stages"]) == sum(p.numel() for p in model.parameters())


def test_sizes_of_coefficients_in_order():
    b = torch.tensor([[1.0, -0.5], [0.005, 0.0], [-0.009, 0.02]])
    sizes, share = curve(b)
    assert sizes.tolist() == pytest.approx([0, 0.005, 0.009, 0.02, 0.5, 1])
    assert share.tolist() == pytest.approx([100 * k / 6 for k in range(1, 7)])


def test_sparsity_of_discriminative_routing():
    other = small_run(4, routing="discriminative", options={"penalty": "l1"})
    data, _, caption = sparsity(other)
    assert set(data) == {"l1"}
    assert data["l1"]["small"] == 0  # all alike at the start
    other.layer().coefficients[::4] = 0.001 * other.layer().coefficients[0, 0]
    assert sparsity(other).data["l1"]["small"] == pytest.approx(25)
    assert "l1" in caption
