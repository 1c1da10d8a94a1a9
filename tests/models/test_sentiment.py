"""heinsen's network for text: masks, mixup, any transformer."""

from __future__ import annotations

import math

import pytest
import torch

from flashcaps import ROUTING
from flashcaps.models import create_model

from ..conftest import assert_near
from ..layer_cases import takes_any_number


@pytest.fixture
def model() -> torch.nn.Module:
    model = create_model("heinsen_sst5", layers=3, width=8)
    for layer in model.capsules.layers:
        for p in layer.learned.values():
            torch.nn.init.normal_(p, std=0.1)
    return model


@pytest.mark.parametrize(("layers", "width", "size"), [(13, 768, 70_336), (7, 384, 38_464)])
def test_any_transformer(layers: int, width: int, size: int) -> None:
    model = create_model("heinsen_sst5", layers=layers, width=width)
    assert sum(p.numel() for p in model.parameters()) == size


def test_start() -> None:
    model = create_model("heinsen_sst5")
    assert_near(model.depth, 0.0)
    assert_near(model.linear.bias, 0.0)
    assert model.linear.weight.std().item() == pytest.approx(math.sqrt(2 / 1280), rel=0.05)


def test_padding_changes_nothing(model: torch.nn.Module) -> None:
    states = torch.randn(2, 5, 3, 8)
    mask = torch.tensor([[1.0, 1, 1, 0, 0]]).expand(2, 5)
    padded, cut = model(states, mask), model(states[:, :3])
    assert_near(padded.scores, cut.scores)
    assert_near(padded.routed.pose, cut.routed.pose)
    assert_near(model(states, mask.bool()).scores, cut.scores)


def test_the_mask_becomes_logits_with_infinities_and_values_between(model: torch.nn.Module) -> None:
    u = torch.zeros(1, 4, 2, 8)
    logits = model.presence(torch.tensor([[1.0, 0.0, 0.25, 0.5]]), u)
    assert logits.tolist()[0][:4] == [math.inf, math.inf, -math.inf, -math.inf]
    assert_near(logits[0, 4:], [math.log(1 / 3)] * 2 + [0.0] * 2)


def test_an_example_of_padding_alone_is_finite_both_ways(model: torch.nn.Module) -> None:
    states = torch.randn(2, 4, 3, 8)
    mask = torch.tensor([[0.0] * 4, [1.0, 1.0, 0.5, 0.0]])
    out = model(states, mask)
    assert torch.isfinite(out.scores).all()
    out.scores.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("routing", [name for name in ROUTING if takes_any_number(name)])
def test_other_algorithms_take_the_mask_too(routing: str) -> None:
    model = create_model("heinsen_sst2", layers=3, width=8, routing=routing)
    states = torch.randn(2, 5, 3, 8)
    changed = states.clone()
    changed[:, 3:] = 9.0
    mask = torch.tensor([[1.0, 1, 1, 0, 0]]).expand(2, 5)
    assert_near(model(states, mask).scores, model(changed, mask).scores)
    assert model(states).scores.shape == (2, 2)


@pytest.mark.parametrize("name", ["heinsen_sst5", "pool_sst5"])
def test_states_and_masks_are_checked(name: str) -> None:
    model = create_model(name, layers=3, width=8)
    with pytest.raises(ValueError, match=r"states: expected \(B, tokens, 3, 8\), got \(1, 4, 3, 9\).*layers=, width="):
        model(torch.zeros(1, 4, 3, 9))
    with pytest.raises(ValueError, match=r"mask: expected \(1, 4\), one per token, got \(1, 5\)"):
        model(torch.zeros(1, 4, 3, 8), torch.ones(1, 5))


def test_an_algorithm_with_a_number_per_child_is_refused() -> None:
    with pytest.raises(ValueError, match="routing: 'discriminative' keeps a number per child"):
        create_model("heinsen_sst5", routing="discriminative")
