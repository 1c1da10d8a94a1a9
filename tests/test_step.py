"""One training step: which loss, at which margin and rate, of which weights, with what for the decoder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashcaps.batches import Batch
from flashcaps.functional import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    margin_loss,
    reconstruction_loss,
    spread_loss,
    spread_margin_by_step,
)
from flashcaps.models._types import Output
from flashcaps.recipe import Loss
from flashcaps.step import criterion

from .fake_data import small_step


def test_every_kind_of_loss() -> None:
    scores, targets, margin = torch.randn(4, 3), torch.tensor([0, 2, 1, 1]), torch.tensor(0.4)
    drawn, pictures = torch.rand(4, 1, 5, 5), torch.rand(4, 1, 5, 5)
    batch = Batch(pictures, targets, targets, pictures)
    several = batch._replace(targets=torch.tensor([[1.0, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 1]]))
    output = Output(scores, None, drawn)
    expected = {
        Loss("margin"): margin_loss(scores, targets),
        Loss("spread"): spread_loss(scores, targets, 0.4),
        Loss("cross_entropy"): cross_entropy_loss(scores, targets),
        Loss("cross_entropy", label_smoothing=0.2): cross_entropy_loss(scores, targets, label_smoothing=0.2),
        Loss("margin", reconstruction=0.0005): margin_loss(scores, targets)
        + 0.0005 * reconstruction_loss(drawn, pictures),
    }
    for spec, value in expected.items():
        torch.testing.assert_close(criterion(output, batch, spec, margin), value, msg=str(spec))
    assert len({round(x.item(), 6) for x in expected.values()}) == len(expected)
    bce = binary_cross_entropy_loss(scores, several.targets)
    torch.testing.assert_close(criterion(output, several, Loss("bce"), margin), bce)


def test_the_margin_of_the_spread_loss_rises_over_the_run() -> None:
    step, _ = small_step("loss.kind=spread", "loss.reconstruction=0", "train.steps=100")
    margins = []
    for at in (0, 50, 100):
        step.set(at)
        margins.append(step.margin.item())
    assert margins == pytest.approx([0.2, 0.55, 0.9])
    step, _ = small_step("loss.kind=spread", "loss.reconstruction=0", "loss.spread_margin=steps")
    step.set(200_000)
    assert step.margin.item() == pytest.approx(spread_margin_by_step(200_000)) == pytest.approx(0.2 + 0.79 / 2)


def test_the_decoder_is_given_the_true_label_in_training() -> None:
    step, plan = small_step()
    chosen: list[Tensor] = []
    step.model.decoder.register_forward_pre_hook(lambda _, inputs: chosen.append(inputs[1]))  # type: ignore[union-attr]
    step(plan.index[0], plan.noise[0], 0)
    assert [x.tolist() for x in chosen] == [(plan.index[0] % 10).tolist()]  # example n is of class n % 10


def test_gradients_are_clipped_together() -> None:
    norms = []
    for clip in (0, 0.001):
        step, plan = small_step(f"clip={clip}")
        step(plan.index[0], plan.noise[0], 0)
        norms.append(torch.cat([p.grad.flatten() for p in step.parameters if p.grad is not None]).norm().item())
    assert norms[1] == pytest.approx(0.001, rel=1e-3)
    assert norms[0] > 0.002


def test_each_return_to_an_earlier_state_halves_the_rate() -> None:
    step, _ = small_step("schedule.kind=constant")
    rates = []
    for step.rollbacks in range(3):
        step.set(0)
        rates.append(step.optimiser.param_groups[0]["lr"])
    assert rates == [0.005, 0.0025, 0.00125]
