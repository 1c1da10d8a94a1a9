"""The change of routing logits while a model trains: against plain sums, and nothing else changes."""

from typing import Any

import pytest
import torch

from flashcaps.functional import squash
from flashcaps.models import create_model
from flashcaps.training.batches import Batch
from flashcaps.training.routing_measure import has_routing_logits, logit_change, probe_due, probe_logits

SMALL = {"backbone": {"channels": 4}, "primary": {"types": 2}, "decoder": False}


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return create_model("capsnet_tiny", **SMALL)


@pytest.fixture
def batch(model: Any) -> Batch:
    return Batch(torch.rand(20, *model.image), torch.zeros(20, dtype=torch.int64))


@torch.no_grad()
def test_logit_change_is_the_difference_of_summed_agreements(model: Any, batch: Batch) -> None:
    model.eval()
    layer, own = model.capsules.layers[-1], model.capsules.layers[-1].routing.iterations
    votes = layer.votes(model.primary(model.backbone(batch.inputs)))
    b, expected = torch.zeros(votes.shape[:3]), []
    for _ in range(5):
        v = squash((b.softmax(-1)[..., None] * votes).sum(1))
        change = (votes * v[:, None]).sum(-1)
        expected.append(float(change.abs().mean()))
        b = b + change
    assert logit_change(model, batch, 5).tolist() == pytest.approx(expected, rel=1e-4)
    assert layer.routing.iterations == own


def test_probing_changes_nothing_and_takes_the_first_images(model: Any, batch: Batch) -> None:
    before = torch.get_rng_state(), {name: x.clone() for name, x in model.state_dict().items()}
    change = probe_logits(model.train(), batch)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(torch.equal(x, before[1][name]) for name, x in model.state_dict().items())
    first = Batch(batch.inputs[:16], batch.targets[:16])
    with torch.no_grad():
        assert change == pytest.approx(logit_change(model.eval(), first, 6).tolist(), rel=1e-5)


def test_logits_are_probed_early_and_of_dynamic_routing_alone(model: Any) -> None:
    assert [step for step in range(1, 101) if probe_due(step)] == [1, 2, 5, 10, 20, 50, 100]
    assert has_routing_logits(model)
    assert not has_routing_logits(create_model("capsnet_tiny", routing="em", **SMALL))
    assert not has_routing_logits(create_model("cnn_diverse_pool"))
