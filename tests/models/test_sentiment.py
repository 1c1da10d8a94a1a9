"""Networks over hidden states: heinsen's capsules and linear classifiers; masks, mixup, any transformer."""

import math

import pytest
import torch
from torch.nn.functional import linear

from flashcaps import ROUTING
from flashcaps.models import Model, create_model

from ..conftest import assert_near
from ..layer_cases import takes_any_number

POOLED = ("pool_sst5", "mix_sst5")
NAMES = ("heinsen_sst5", *POOLED)
FIRST_THREE = torch.tensor([[1.0, 1, 1, 0, 0]]).expand(2, 5)


def made(name: str = "heinsen_sst5") -> Model:
    """A small network, with other numbers than 0 where its parameters begin there."""
    model = create_model(name, layers=3, width=8)
    for key, p in model.named_parameters():
        if key == "mix" or ".learned." in key:
            torch.nn.init.normal_(p, std=1.0 if key == "mix" else 0.1)
    return model


@pytest.mark.parametrize(("layers", "width", "sizes"), [(13, 768, (70_336, 3_845, 3_858)),
                                                        (7, 384, (38_464, 1_925, 1_932))])  # fmt: skip
def test_any_transformer(layers: int, width: int, sizes: tuple[int, ...]) -> None:
    for name, size in zip(NAMES, sizes, strict=True):
        model = create_model(name, layers=layers, width=width)
        assert model.reads == (layers, width)
        assert sum(p.numel() for p in model.parameters()) == size


def test_initial_values() -> None:
    model = create_model("heinsen_sst5")
    assert_near(model.depth, 0.0)
    assert_near(model.linear.bias, 0.0)
    assert model.linear.weight.std().item() == pytest.approx(math.sqrt(2 / 1280), rel=0.05)
    model, states = create_model("mix_sst2", layers=3, width=8), torch.randn(2, 4, 3, 8)
    assert_near(model(states).scores, model.classifier(states.mean((1, 2))))  # the mean of layers


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    model, states = made(name), torch.randn(2, 5, 3, 8)
    cut = model(states[:, :3])
    for mask in (FIRST_THREE, FIRST_THREE.bool()):
        padded = model(states, mask)
        assert_near(padded.scores, cut.scores)
        if name not in POOLED:
            assert_near(padded.routed.pose, cut.routed.pose)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_of_no_token_is_finite_both_ways(name: str) -> None:
    model = made(name)
    scores = model(torch.randn(2, 4, 3, 8), torch.tensor([[0.0] * 4, [1.0, 1.0, 0.5, 0.0]])).scores
    assert torch.isfinite(scores).all()
    if name in POOLED:
        assert_near(scores[0], model.classifier.bias)
    scores.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES[:2])
def test_states_and_masks_are_checked(name: str) -> None:
    model = create_model(name, layers=3, width=8)
    with pytest.raises(ValueError, match=r"states: expected \(B, tokens, 3, 8\), got \(1, 4, 3, 9\).*layers=, width="):
        model(torch.zeros(1, 4, 3, 9))
    with pytest.raises(ValueError, match=r"mask: expected \(1, 4\), one per token, got \(1, 5\)"):
        model(torch.zeros(1, 4, 3, 8), torch.ones(1, 5))


def test_the_mask_becomes_logits_with_infinities_and_values_between() -> None:
    logits = made().presence(torch.tensor([[1.0, 0.0, 0.25, 0.5]]), torch.zeros(1, 4, 2, 8))
    assert logits.tolist()[0][:4] == [math.inf, math.inf, -math.inf, -math.inf]
    assert_near(logits[0, 4:], [math.log(1 / 3)] * 2 + [0.0] * 2)


@pytest.mark.parametrize("routing", ROUTING)
def test_other_algorithms_take_the_mask_too_unless_they_keep_a_number_per_child(routing: str) -> None:
    if not takes_any_number(routing):
        with pytest.raises(ValueError, match=f"routing: '{routing}' keeps a number per child"):
            create_model("heinsen_sst5", routing=routing)
        return
    model, states = create_model("heinsen_sst2", layers=3, width=8, routing=routing), torch.randn(2, 5, 3, 8)
    changed = states.clone()
    changed[:, 3:] = 9.0
    assert_near(model(states, FIRST_THREE).scores, model(changed, FIRST_THREE).scores)
    assert model(states).scores.shape == (2, 2)


def by_hand(model: Model, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One text and one token after the other, in float64."""
    weights = [0.0, 0.0, 1.0] if model.mix is None else torch.softmax(model.mix.double(), 0).tolist()
    rows = []
    for text, present in zip(states.double(), mask.double(), strict=True):
        x = sum(p * w * h for p, token in zip(present, text, strict=True) for w, h in zip(weights, token, strict=True))
        rows.append(linear(x / present.sum(), model.classifier.weight.double(), model.classifier.bias.double()))
    return torch.stack(rows)


@pytest.mark.parametrize("name", POOLED)
def test_pooled_scores_are_a_linear_map_of_the_mean(name: str) -> None:
    model, states = made(name), torch.randn(2, 5, 3, 8)
    mask = torch.tensor([[1.0, 1, 1, 0, 0], [1.0, 0.4, 0.2, 0.2, 0]])
    out = model(states, mask)
    assert out.routed is None
    assert_near(out.scores, by_hand(model, states, mask))
    assert_near(model(states).scores, by_hand(model, states, torch.ones(2, 5)))
