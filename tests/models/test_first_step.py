"""One plain step of Adam leaves squashed primary capsules and the loss where they can learn from."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from flashcaps.data import load_data
from flashcaps.models import Capsules, create_model, list_models
from flashcaps.models.registry import MODELS
from flashcaps.nn.losses import margin_loss
from flashcaps.routing.math import length

# One name of each network, that with the fewest classes: on each of those a child has the most weight.
CAPSULES = {name: spec for name in reversed(list_models()) if isinstance(spec := MODELS[name], Capsules)}
NETWORKS = {repr(replace(spec, classes=3)): name for name, spec in CAPSULES.items() if spec.route.form == "squash"}


def first_step(name: str, **overrides: Any) -> tuple[list[float], list[float]]:
    """Mean length of the primary capsules, and loss, before and after one step at 1e-3 on a digit of each class."""
    torch.manual_seed(0)
    model: Any = create_model(name, decoder=False, **overrides)
    digits, (channels, *size) = load_data("digits").train, model.image
    one_of_each = [digits.labels.tolist().index(k) for k in range(10)]
    images = F.interpolate(digits.images[one_of_each] / 255, size, mode="bilinear").expand(-1, channels, -1, -1)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    lengths, losses = [], []
    for last in (False, True):
        with torch.set_grad_enabled(not last):
            u = model.primary(model.backbone(images)).pose
            loss = margin_loss(model.head(model.capsules(u)), torch.arange(10) % model.classes)
        lengths.append(length(u).mean().item())
        losses.append(loss.item())
        if not last:
            loss.backward()
            optimiser.step()
    return lengths, losses


@pytest.mark.parametrize("name", NETWORKS.values())
def test_primary_capsules_and_loss_survive_the_first_step(name: str) -> None:
    lengths, losses = first_step(name)
    assert lengths[1] < 0.5
    assert losses[1] <= losses[0]


def test_pytorchs_start_does_not() -> None:
    lengths, losses = first_step("capsnet_mnist", primary={"shares": 0})
    assert lengths[1] > 0.9
    assert losses[1] > 3 * losses[0]
