"""Losses against values worked out by hand, and against plain loops."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from flashcaps.nn.losses import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    margin_loss,
    reconstruction_loss,
    spread_loss,
    spread_margin,
    spread_margin_by_step,
)

LENGTHS = torch.tensor([[0.7, 0.4, 0.05], [0.95, 0.0, 0.2]], dtype=torch.float64)


# ---- by hand


SEVERAL = torch.tensor([[1, 1, 0], [0, 0, 0]])
EIGHTHS = torch.tensor([[1.0, 2.0, 5.0], [5.0, 2.0, 1.0]], dtype=torch.float64).log()  # probabilities 1/8, 2/8, 5/8
ODDS = torch.tensor([[3.0, 0.25], [0.25, 3.0]], dtype=torch.float64).log()  # probabilities 3/4 and 1/5
OTHER = {"present": 1.0, "absent": 0.0, "down_weight": 2.0}


@pytest.mark.parametrize(("loss", "scores", "targets", "options", "expected"), [
    (margin_loss, LENGTHS, torch.tensor([0, 2]), {}, (0.2**2 + 0.5 * 0.3**2 + 0.5 * 0.85**2 + 0.7**2) / 2),
    *((margin_loss, LENGTHS, t, {}, (0.2**2 + 0.5**2 + 0.5 * (0.85**2 + 0.1**2)) / 2)
      for t in (SEVERAL, SEVERAL.bool(), SEVERAL.double())),
    (margin_loss, LENGTHS[:1], torch.tensor([0]), OTHER, 0.3**2 + 2 * (0.4**2 + 0.05**2)),
    *((spread_loss, LENGTHS, t, {"margin": margin}, (0.2**2 + 1.25**2 + 0.3**2) / 2)
      for t, margin in ((torch.tensor([0, 2]), 0.5), (torch.tensor([[1, 0, 0], [0, 0, 1]]), torch.tensor(0.5)))),
    (cross_entropy_loss, EIGHTHS, torch.tensor([2, 1]), {}, (math.log(8 / 5) + math.log(8 / 2)) / 2),
    (cross_entropy_loss, EIGHTHS[:1], torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64), {},  # as mixup makes them
     0.25 * math.log(8) + 0.75 * math.log(8 / 5)),
    (cross_entropy_loss, EIGHTHS[:1], torch.tensor([2]), {"label_smoothing": 0.3},
     0.7 * math.log(8 / 5) + 0.3 * (math.log(8) + math.log(4) + math.log(8 / 5)) / 3),
    (binary_cross_entropy_loss, ODDS, torch.tensor([[1, 1], [0, 0]]), {}, math.log(4 / 3 * 5 * 5 / 4 * 4) / 4),
    (binary_cross_entropy_loss, ODDS, torch.tensor([0, 1]), {}, math.log(4 / 3 * 5 / 4 * 5 / 4 * 4 / 3) / 4),
])  # fmt: skip
def test_losses_by_hand(loss, scores: Tensor, targets: Tensor, options: dict, expected: float) -> None:
    """Sums over classes, but means of binary cross-entropies; means over the batch."""
    assert loss(scores, targets, **options).item() == pytest.approx(expected, abs=1e-12)


def test_margins_of_the_spread_loss_rise() -> None:
    """Linearly from 0.2 to 0.9; in the public code from 0.21 to 0.99, where they are held."""
    assert [spread_margin(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.2, 0.375, 0.55, 0.9])
    for step, x in ((0, -4), (200_000, 0), (250_000, 1), (700_000, 10), (10**9, 10)):
        assert spread_margin_by_step(step) == pytest.approx(0.2 + 0.79 / (1 + math.exp(-x)), abs=1e-12)
    with pytest.raises(ValueError, match=r"^margin: expected one number, got \(3,\)"):  # of examples, or of classes
        spread_loss(torch.zeros(3, 3), torch.arange(3), torch.rand(3))
    with pytest.raises(ValueError, match=r"^labels: expected one class of each example.*margin_loss takes them"):
        spread_loss(torch.zeros(3, 3), torch.ones(3, 3), 0.5)


# ---- reconstruction


def test_reconstruction_is_the_sum_of_squares_per_image() -> None:
    """One image off by 1 in each of 784 pixels, one off by 2 in a single one: (784 + 4) / 2, not a mean over pixels."""
    image = torch.zeros(2, 1, 28, 28)
    output = torch.zeros(2, 784)
    output[0] = 1.0
    output[1, 5] = 2.0
    assert reconstruction_loss(output, image).item() == 394.0
    x = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: reconstruction_loss(x, torch.zeros(2, 2, 3, dtype=torch.float64)), x)
    with pytest.raises(ValueError, match=r"^(output|image): .*got \(2, "):  # one pixel would broadcast over all
        reconstruction_loss(output, torch.zeros(2, 1))


# ---- what they share


CALLS = {
    "lengths": margin_loss,
    "activations": lambda x, t, **more: spread_loss(x, t, 0.5, **more),
    "scores": cross_entropy_loss,
    "scores, binary": binary_cross_entropy_loss,
}


@pytest.mark.parametrize("call", CALLS)
def test_gradients(call: str) -> None:
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: CALLS[call](x, torch.tensor([0, 3, 1])), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [cross_entropy_loss, binary_cross_entropy_loss])
def test_cross_entropies_of_half_precision_scores_are_computed_in_fp32(loss, dtype: torch.dtype) -> None:
    scores, labels = torch.randn(4, 3).to(dtype), torch.tensor([0, 1, 2, 1])
    assert loss(scores, labels).dtype == torch.float32
    assert torch.equal(loss(scores, labels), loss(scores.float(), labels))


# ---- wrong arguments


@pytest.mark.parametrize("call", CALLS)
def test_scores_and_targets_of_the_wrong_shape_or_dtype(call: str) -> None:
    name = call.split(",")[0]
    with pytest.raises(ValueError, match=rf"^{name}: expected \(B, classes\), got \(2, 3, 4\)"):
        CALLS[call](torch.zeros(2, 3, 4), torch.zeros(2))
    with pytest.raises(ValueError, match=rf"^{name}: .*floating.*got torch.int64"):
        CALLS[call](torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    name = "labels" if call == "activations" else "targets"
    for targets in (torch.zeros(3).long(), torch.zeros(2, 4), torch.zeros(2, 3, 1)):
        with pytest.raises(ValueError, match=rf"^{name}: expected \(2,\) class indices or \(2, 3\) multi-hot, got \("):
            CALLS[call](torch.zeros(2, 3), targets)
    wrong = torch.tensor([0, 3]), torch.tensor([-1, 0]), torch.tensor([[1, -1, -1], [-1, 1, -1]])
    for targets, last in zip(wrong, (2, 2, 1), strict=True):
        with pytest.raises(ValueError, match=rf"^{name}: expected (classes|numbers) from 0 to {last}, got "):
            CALLS[call](torch.zeros(2, 3), targets)
    with pytest.raises(TypeError, match=r"^weight: expected a torch.Tensor, got list"):
        CALLS[call](torch.zeros(2, 3), torch.tensor([0, 2]), weight=[1.0, 1.0, 5.0])


@pytest.mark.parametrize(("loss", "t", "counts"), [
    *((loss, torch.tensor([0, 2, 1, 1, 2]), [0.5, 0.0, 3.0, 3.0, 0.0]) for loss in CALLS.values()),
    (margin_loss, torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]]), [1.75, 3.0, 1.5, 1.0]),
])  # fmt: skip
def test_an_example_counts_as_much_as_its_class_or_the_mean_of_several(loss, t: Tensor, counts: list[float]) -> None:
    x, weight = torch.rand(len(t), 3, dtype=torch.float64), torch.tensor([0.5, 3.0, 0.0])
    alone = torch.stack([loss(x[k : k + 1], t[k : k + 1]) for k in range(len(t))])
    torch.testing.assert_close(loss(x, t, weight=weight), (torch.tensor(counts) * alone).mean())
    torch.testing.assert_close(loss(x, t, weight=torch.ones(3)), loss(x, t))
    with pytest.raises(ValueError, match=r"weight: expected \(3,\), one number per class, got \(2,\)"):
        loss(x, t, weight=torch.ones(2))
