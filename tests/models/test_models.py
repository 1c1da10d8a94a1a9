"""Every model runs on its own input, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashcaps.models import Model, create_model, list_models

# Where betas begin at 0, nothing but they and the score can move in the first step.
LAYERS = ("capsules.layers.0", "capsules.layers.1.weight", "capsules.layers.1.bias")
STILL_AT_FIRST = {
    "heinsen_smallnorb": ("backbone", "primary", *LAYERS),
    "heinsen_sst2": ("depth", "linear", "norm", *LAYERS),
    "heinsen_sst5": ("depth", "linear", "norm", *LAYERS),
}


def inputs(model: Model, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, 37, 1280) if model.image is None else torch.rand(batch, *model.image)


@pytest.mark.parametrize("name", list_models())
def test_forward_and_backward(name: str) -> None:
    model = create_model(name)
    chosen = {} if model.decoder is None else {"chosen": torch.tensor([1, 0])}
    out = model(inputs(model), **chosen)
    assert out.scores.shape == (2, model.classes)
    loss = (out.scores * torch.randn_like(out.scores)).sum()
    if model.decoder is not None:
        assert out.reconstruction.shape == (2, *model.image)
        loss = loss + out.reconstruction.square().sum()
    loss.backward()
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key
        if not key.startswith(STILL_AT_FIRST.get(name, ())):
            assert p.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", sorted(STILL_AT_FIRST))
def test_what_stands_still_at_first_moves_once_betas_do(name: str) -> None:
    model = create_model(name)
    for layer in model.capsules.layers:
        for p in layer.learned.values():
            torch.nn.init.normal_(p)
    (model(inputs(model)).scores * torch.tensor([1.0, -2.0])[:, None]).sum().backward()
    for key, p in model.named_parameters():
        assert torch.isfinite(p.grad).all(), key
        assert p.grad.abs().sum() > 0, key
