"""What a call returns, for mypy (which `make types` runs on this file) and an editor; and that it does return it."""

from typing import Any, assert_type

import pytest
import torch

import flashcaps
from flashcaps.models import CapsuleNetwork, Model, Output


def test_calls_have_types() -> None:
    primary = flashcaps.PrimaryCapsules(1, types=2, dim=4, kernel=3)
    dense = flashcaps.DenseCapsules(in_capsules=8, in_dim=4, out_capsules=3, out_dim=4)
    conv = flashcaps.ConvCapsules("em", in_types=2, in_dim=4, out_types=2, out_dim=4, kernel=2)
    features = torch.rand(2, 1, 4, 4)
    below = assert_type(primary(features), flashcaps.Routed)
    for routed in (below, assert_type(dense(below), flashcaps.Routed), assert_type(conv(below), flashcaps.Routed),
                   assert_type(flashcaps.CapsuleStack([dense])(below), flashcaps.Routed)):
        assert isinstance(routed, flashcaps.Routed)
    assert_type(dense(below, coupling=True).coupling, torch.Tensor | None)


def test_models_have_types() -> None:
    model = assert_type(flashcaps.create_model("capsnet_tiny"), Model)
    assert isinstance(assert_type(model(torch.rand(2, 1, 28, 28)), Output), Output)
    assert isinstance(assert_type(flashcaps.load("demo_dynamic"), Model), Model)
    assert isinstance(model, CapsuleNetwork)
    with pytest.raises(TypeError, match="route"):
        model(torch.rand(2, 1, 28, 28), coupling=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*flashcaps.ROUTING, "squash", "norm", "sigmoid"])
def test_reset_parameters_draws_afresh_what_a_new_layer_has(name: str) -> None:
    """A layer of every algorithm, and primary capsules of every form."""

    def build() -> flashcaps.DenseCapsules | flashcaps.PrimaryCapsules:
        options: dict[str, Any] = {"norm_activation": True} if name == "em" else {}
        torch.manual_seed(0)
        if name not in flashcaps.ROUTING:
            return flashcaps.PrimaryCapsules(2, types=2, dim=4, kernel=3, form=name, batch_norm=True)
        return flashcaps.DenseCapsules(name, in_capsules=8, in_dim=4, out_capsules=3, out_dim=4, **options)

    new, old = build(), build()
    with torch.no_grad():
        for value in (*old.parameters(), *old.buffers()):
            value.fill_(7)
    torch.manual_seed(0)
    old.reset_parameters()
    torch.testing.assert_close(old.state_dict(), new.state_dict(), rtol=0, atol=0)
    with torch.device("meta"):
        empty = build()
    torch.manual_seed(0)
    empty.to_empty(device="cpu").reset_parameters()
    torch.testing.assert_close(empty.state_dict(), new.state_dict(), rtol=0, atol=0)
