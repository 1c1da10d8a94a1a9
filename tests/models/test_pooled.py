"""Linear classifiers over hidden states: means of tokens, mixes of layers."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from flashcaps.models import Model, create_model

from ..conftest import assert_near

NAMES = ("pool_sst5", "mix_sst5")


def made(name: str) -> Model:
    model = create_model(name, layers=3, width=8)
    if model.mix is not None:
        torch.nn.init.normal_(model.mix)
    return model


def by_hand(model: Model, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One text and one token after the other, in float64."""
    weights = [0.0, 0.0, 1.0] if model.mix is None else torch.softmax(model.mix.double(), 0).tolist()
    rows = []
    for text, present in zip(states.double(), mask.double(), strict=True):
        x = sum(p * w * h for p, token in zip(present, text, strict=True) for w, h in zip(weights, token, strict=True))
        rows.append(linear(x / present.sum(), model.classifier.weight.double(), model.classifier.bias.double()))
    return torch.stack(rows)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_a_linear_map_of_the_mean(name: str) -> None:
    model, states = made(name), torch.randn(2, 5, 3, 8)
    mask = torch.tensor([[1.0, 1, 1, 0, 0], [1.0, 0.4, 0.2, 0.2, 0]])
    out = model(states, mask)
    assert out.routed is None
    assert_near(out.scores, by_hand(model, states, mask))
    assert_near(model(states).scores, by_hand(model, states, torch.ones(2, 5)))
    first = torch.tensor([[True, True, True, False, False]]).expand(2, 5)
    assert_near(model(states, first).scores, model(states[:, :3]).scores)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_of_no_token_is_finite_both_ways(name: str) -> None:
    model = made(name)
    scores = model(torch.randn(2, 4, 3, 8), torch.tensor([[0.0] * 4, [1.0, 1.0, 0.5, 0.0]])).scores
    assert_near(scores[0], model.classifier.bias)
    scores.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_only_a_mix_reads_the_lower_layers() -> None:
    states = torch.randn(2, 4, 3, 8)
    changed = states.clone()
    changed[:, :, 0] += 1
    for name, same in zip(NAMES, (True, False), strict=True):
        model = made(name)
        assert torch.equal(model(states).scores, model(changed).scores) == same


def test_a_mix_begins_as_the_mean_of_layers() -> None:
    model, states = create_model("mix_sst2", layers=3, width=8), torch.randn(2, 4, 3, 8)
    assert_near(model(states).scores, model.classifier(states.mean((1, 2))))


@pytest.mark.parametrize(("layers", "width", "size"), [(13, 768, 3_845), (7, 384, 1_925)])
def test_any_transformer(layers: int, width: int, size: int) -> None:
    for name, more in zip(NAMES, (0, layers), strict=True):
        model = create_model(name, layers=layers, width=width)
        assert model.reads == (layers, width)
        assert sum(p.numel() for p in model.parameters()) == size + more
