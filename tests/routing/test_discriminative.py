"""Discriminative routing: the update of Eq. 13 and 15 in plain loops and by hand, and what it declares."""

import pytest
import torch
from torch import Tensor

from flashcaps.functional import discriminative_update, margin_loss, squash
from flashcaps.nn.losses import ABSENT, PRESENT
from flashcaps.routing.discriminative import label_signs

from ..cases import CASES
from ..conftest import assert_near
from . import oracles

B, I, J, D = 5, 4, 3, 2
LABELS = torch.tensor([0, 2, 1, 2, 2])
SEVERAL = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]])  # multi-hot


def draw(*shape: int) -> dict[str, Tensor]:
    return CASES["discriminative"].draw(*(shape or (B, I, J, D)))


def present(labels: Tensor) -> list[set[int]]:
    """The classes of each example."""
    if labels.ndim == 1:
        return [{k} for k in labels.tolist()]
    return [{j for j, there in enumerate(row) if there} for row in labels.tolist()]


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize(("shape", "labels"), [
    ((B, I, J, D), LABELS),
    ((B, I, J, D), SEVERAL),
    ((B, I, J, D), SEVERAL.bool()),
    ((B, I, J, D), SEVERAL.double()),
    ((1, 1, 2, 1), LABELS[:1]),
    ((2, 1, 3, 3), LABELS[:2]),
])  # fmt: skip
def test_update_agrees_with_oracle(shape: tuple[int, ...], labels: Tensor, penalty: str) -> None:
    """The subgradient of |x| at 0 is 0."""
    tensors, step = draw(*shape), {"rate": 0.3, "strength": 0.7, "penalty": penalty}
    tensors["coefficients"][0, -1] = 0.0
    expected = oracles.discriminative_update(
        tensors["coefficients"].tolist(), tensors["votes"].tolist(), present(labels), **step
    )
    assert_near(discriminative_update(**tensors, labels=labels, **step), expected)


def _one_by_one(b: float, votes: list[float], labels: list[int], **step) -> float:
    """One child and one parent of one element: labels 0 is its class, 1 is another."""
    u = torch.tensor(votes, dtype=torch.float64).view(-1, 1, 1, 1)
    coefficients = torch.tensor([[b]], dtype=torch.float64)
    return discriminative_update(coefficients, u, torch.tensor(labels)[:, None] == 0, **step).item()


def test_steps_by_hand() -> None:
    """Eq. 13 counts half the penalty once per example: b = 2, votes 1, 3 and 2, gamma 0.1, lambda 0.5 give
    2 + 0.2 * ((1 + 9 + 4) * 2 - 3 * 0.25 * 2). Eq. 15 counts it once: votes 1 and 3 give 2 + 0.2 * (2 + 18 - 0.5).
    Both ascend for the true class and descend for others; Eq. 13 is the default."""
    assert _one_by_one(2.0, [1, 3, 2], [0, 0, 0], rate=0.1, strength=0.5, penalty="l2") == pytest.approx(7.3)
    assert _one_by_one(2.0, [1, 3], [0, 0], rate=0.1, strength=0.5, penalty="l1") == pytest.approx(5.9)
    assert _one_by_one(-2.0, [0], [0], rate=0.1, strength=0.5, penalty="l1") == pytest.approx(-1.9)
    assert _one_by_one(1.0, [2], [0], rate=0.1, strength=0.0) == pytest.approx(1.8)
    assert _one_by_one(1.0, [2], [1], rate=0.1, strength=0.0) == pytest.approx(0.2)
    assert _one_by_one(2.0, [1, 3], [0, 0], rate=0.1, strength=0.5) == pytest.approx(5.8)


@pytest.mark.parametrize("labels", [LABELS.repeat(20), SEVERAL.repeat(20, 1)])
def test_bounded_signs_are_zero_exactly_where_the_margin_loss_has_no_gradient(labels: Tensor) -> None:
    v = draw(100, I, J, D)["votes"][:, 0] * torch.logspace(-1, 1, 100, dtype=torch.float64)[:, None, None]
    lengths = squash(v).norm(dim=-1).requires_grad_()
    (gradient,) = torch.autograd.grad(margin_loss(lengths, labels), lengths)
    signs = label_signs(labels, v, (PRESENT, ABSENT))
    assert torch.equal(signs, -gradient.sign())
    assert signs.unique().tolist() == [-1, 0, 1]
    met = signs == 0
    assert torch.equal(signs[~met], label_signs(labels, v)[~met])


def test_update_keeps_the_dtype_of_the_coefficients_and_leaves_them_alone() -> None:
    tensors = draw()
    votes, coefficients = tensors["votes"].half(), tensors["coefficients"].float()
    before = coefficients.clone()
    updated = discriminative_update(coefficients, votes, LABELS, rate=0.1, strength=0.1)
    assert updated.dtype == torch.float32
    expected = oracles.discriminative_update(coefficients.tolist(), votes.tolist(), present(LABELS), 0.1, 0.1)
    assert_near(updated, expected)
    assert torch.equal(coefficients, before)


def test_update_on_an_empty_batch_moves_nothing_but_by_the_penalty() -> None:
    tensors = draw(0, I, J, D)
    labels = LABELS[:0]
    step = {"labels": labels, "rate": 0.1, "strength": 0.5}
    assert_near(discriminative_update(**tensors, **step), tensors["coefficients"])
    assert_near(
        discriminative_update(**tensors, **step, penalty="l1"),
        tensors["coefficients"] - 2 * 0.1 * 0.5 * tensors["coefficients"].sign(),
    )


@pytest.mark.parametrize(("arguments", "message"), [
    ({"labels": LABELS[:3]}, r"labels: expected \(5,\).*\(5, 3\) multi-hot, got \(3,\)"),
    ({"labels": SEVERAL[:, :2]}, r"labels: .*got \(5, 2\)"),
    ({"labels": LABELS + 1}, r"labels: expected classes from 0 to 2, got 1 to 3"),
    ({"labels": LABELS - 1}, r"labels: expected classes from 0 to 2, got -1 to 1"),
    ({"labels": LABELS.cfloat()}, r"labels: expected whole numbers as class indices, got torch.complex64"),
    ({"penalty": "l3"}, r"penalty: expected one of 'l2', 'l1', got 'l3'"),
    ({"coefficients": torch.zeros(J, I)}, r"coefficients: expected \(4, 3\).*got \(3, 4\)"),
])  # fmt: skip
def test_update_checks_its_arguments(arguments: dict, message: str) -> None:
    good = draw() | {"labels": LABELS, "rate": 0.1, "strength": 0.1}
    with pytest.raises(ValueError, match=message):
        discriminative_update(**(good | arguments))
