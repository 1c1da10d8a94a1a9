"""The capsule network: reconstruction, coupling, odd batches."""

import pytest
import torch

from flashcaps.models import create_model

from ..conftest import assert_near

IMAGES = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_several_chosen_classes_are_drawn_each_on_its_own() -> None:
    model = create_model("capsnet_tiny")
    chosen = torch.tensor([[1, 2], [7, 0], [3, 3]])
    out = model(IMAGES, chosen)
    assert out.reconstruction.shape == (3, 2, 1, 28, 28)
    for k in range(2):
        assert_near(out.reconstruction[:, k], model(IMAGES, chosen[:, k]).reconstruction)


@pytest.mark.parametrize("routing", ["dynamic", "attention"])
def test_none_draws_the_predicted_class(routing: str) -> None:
    model = create_model("capsnet_tiny", routing=routing)
    out = model(IMAGES)
    assert out.reconstruction is None  # unless asked for
    assert_near(model.reconstruct(out.routed), model.reconstruct(out.routed, out.scores.argmax(1)))


def test_batches_may_be_small() -> None:
    model = create_model("capsnet_tiny")
    for batch in (0, 1):
        out = model(torch.rand(batch, 1, 28, 28), torch.zeros(batch, 2, dtype=torch.long))
        assert out.scores.shape == (batch, 10)
        assert out.reconstruction.shape == (batch, 2, 1, 28, 28)


def test_a_plain_network_draws_nothing_and_drops_in_training_alone() -> None:
    model = create_model("cnn_affnist", image=(1, 12, 12))
    x = torch.rand(1, 1, 12, 12)
    assert model.decoder is None
    with pytest.raises(ValueError, match="chosen: a plain network has no decoder"):
        model(x, torch.tensor([0]))
    assert not torch.equal(model(x).scores, model(x).scores)
    model.eval()
    assert torch.equal(model(x).scores, model(x).scores)
