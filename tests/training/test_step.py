"""One training step: which loss, at which margin and rate, of which weights, in how many parts, averaged."""

import copy

import pytest
import torch
from torch import Tensor

from flashcaps.functional import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    margin_loss,
    reconstruction_loss,
    spread_loss,
    spread_margin_by_step,
)
from flashcaps.models.base import Output
from flashcaps.nn.backbones import ChannelsLast
from flashcaps.training.batches import Batch
from flashcaps.training.distributed import Workers
from flashcaps.training.recipe import Loss
from flashcaps.training.step import Average, criterion

from ..fake_data import small_step


def test_every_kind_of_loss() -> None:
    scores, targets, margin = torch.randn(4, 3), torch.tensor([0, 2, 1, 1]), torch.tensor(0.4)
    p = scores.clamp(1e-6, 1 - 1e-6)
    drawn, pictures = torch.rand(4, 1, 5, 5), torch.rand(4, 1, 5, 5)
    batch = Batch(pictures, targets, targets, pictures)
    several = batch._replace(targets=torch.tensor([[1.0, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 1]]))
    output = Output(scores, None, drawn)
    expected = {
        Loss("margin"): margin_loss(scores, targets),
        Loss("spread"): spread_loss(scores, targets, 0.4),
        Loss("cross_entropy"): cross_entropy_loss(scores, targets),
        Loss("logit_cross_entropy"): cross_entropy_loss((p / (1 - p)).log(), targets),
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
        step.prepare(at)
        margins.append(step.margin.item())
    assert margins == pytest.approx([0.2, 0.55, 0.9])
    step, _ = small_step("loss.kind=spread", "loss.reconstruction=0", "loss.spread_margin=steps")
    step.prepare(200_000)
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


@pytest.mark.parametrize("penalty", [None, "l1", "l2"])
def test_accumulated_parts_make_the_same_step(penalty: str | None) -> None:
    """And coefficients of discriminative routing take one, however many parts a batch has."""
    more = () if penalty is None else ("model.routing=discriminative", "model.options.rate=2e-3",
                                       f"model.options.penalty={penalty}", "model.options.strength=1")  # fmt: skip
    losses, grads, moves = [], [], []
    for parts in (1, 4):
        step, plan = small_step(f"accumulate={parts}", *more)
        buffers = dict(step.model.capsules.layers[0].named_buffers())
        start = {name: x.clone() for name, x in buffers.items()}
        step(plan.index[0], plan.noise[0], 0)
        losses.append(step.read()[0])
        grads.append(torch.cat([p.grad.flatten() for p in step.parameters]))
        moves.append([x - start[name] for name, x in buffers.items()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert (grads[0] - grads[1]).norm() < 1e-5 * grads[0].norm()
    assert len(moves[0]) == (penalty is not None)
    for one, several in zip(*moves, strict=True):
        torch.testing.assert_close(one, several, rtol=1e-5, atol=1e-8)
        assert one.abs().max() > 1e-3


def test_bounded_coefficients_follow_the_learning_rate() -> None:
    """A quarter of the rate at the second step. As in the paper, which is the default, the rate stays."""
    moves: dict[bool, list[Tensor]] = {}
    for bounded in (True, False):
        for at in (0, 1):
            step, plan = small_step("model.routing=discriminative", "model.options.rate=1", "schedule.every=1",
                                    "schedule.kind=exponential", "schedule.factor=0.25",
                                    f"model.options.bounded={str(bounded).lower()}")  # fmt: skip
            start = step.model.capsules.layers[0].coefficients.clone()
            step(plan.index[0], plan.noise[0], at)
            moves.setdefault(bounded, []).append(step.model.capsules.layers[0].coefficients - start)
    torch.testing.assert_close(moves[True][1], moves[True][0] / 4, rtol=1e-4, atol=1e-7)
    assert torch.equal(moves[False][1], moves[False][0])
    assert min(x.abs().max() for x in moves[True]) > 1e-5


def test_an_average_has_weights_and_statistics_averaged_and_counters_as_they_are() -> None:
    step, plan = small_step("ema=0.75")
    weight = step.model.capsules.layers[0].weight
    before = weight.detach().clone()
    step(plan.index[0], plan.noise[0], 0)
    torch.testing.assert_close(step.tested.capsules.layers[0].weight, 0.75 * before + 0.25 * weight.detach())
    source = torch.nn.BatchNorm2d(2)
    average = Average(source, 0.75)
    source.running_mean.fill_(4.0)
    source.num_batches_tracked.fill_(7)
    average.update()
    assert average.model.running_mean.tolist() == [1, 1]
    assert average.model.num_batches_tracked == 7


def test_processes_average_what_batches_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running means and variances of 0 and 1 here, and of 2 and 2 in the other process; nothing else is touched."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda x: x.add_(2))
    model = torch.nn.BatchNorm2d(1)
    Workers(torch.device("cpu"), 0, 2).average_statistics(model)
    assert (model.running_mean.item(), model.running_var.item()) == (1, 1.5)
    assert (model.weight.item(), model.bias.item(), model.num_batches_tracked.item()) == (1, 0, 0)


def test_states_come_back_in_the_layout_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused optimisers read both as they lie; a state may be from a device without channels last."""
    (step, plan), (other, _) = small_step(), small_step()
    step(plan.index[0], plan.noise[0], 0)
    monkeypatch.setattr(ChannelsLast, "device", "cpu")
    other.model.to("cpu")
    other.load_state_dict(copy.deepcopy(step.state_dict()))
    for x in (step, other):
        x(plan.index[1], plan.noise[1], 1)
    for p, q in zip(step.parameters, other.parameters, strict=True):
        torch.testing.assert_close(p, q)
        assert other.optimiser.state[q]["exp_avg"].stride() == q.stride()
