"""From class capsules to scores and pictures.

Numbers of `Lengths`, `SharedLinear` and `Decoder` are compared in tests/deploy/test_convert.py, sizes in
tests/models/test_registry.py.
"""

import pytest
import torch

from flashcaps import Activations, Decoder, Routed
from flashcaps.nn.heads import mask_capsules

from ..conftest import assert_near


def test_activations() -> None:
    routed = Routed(torch.randn(2, 3, 4), torch.rand(2, 3))
    assert Activations()(routed) is routed.activation
    with pytest.raises(ValueError, match=r"^routed: .*no activation; use SharedLinear"):
        Activations()(Routed(torch.randn(2, 3, 4)))


def test_all_but_one_capsule_are_zeroed_not_dropped() -> None:
    pose = torch.randn(2, 3, 4)
    for chosen, kept in (([2, 0], [[0, 0, 1], [1, 0, 0]]), ([[1, 0, 1], [0, 0, 0]], [[1, 0, 1], [0, 0, 0]])):
        assert torch.equal(mask_capsules(pose, torch.tensor(chosen)), pose * torch.tensor(kept)[..., None])


def test_decoder_chooses_the_most_active_unless_told() -> None:
    decoder = Decoder(3, 2, (1, 2, 2), hidden=())
    pose = torch.tensor([[[0.1, 0.0], [0.0, 0.9], [0.3, 0.3]]])
    assert_near(decoder(Routed(pose)), decoder(Routed(pose), torch.tensor([1])).double())
    activation = torch.tensor([[0.2, 0.1, 0.9]])
    assert_near(decoder(Routed(pose, activation)), decoder(Routed(pose), torch.tensor([2])).double())


@pytest.mark.parametrize("chosen", [torch.tensor([0, 1, 2]), torch.tensor([[0, 1]]), torch.tensor([0, 3])])
def test_decoder_checks_what_is_chosen(chosen: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^chosen: expected"):
        Decoder(3, 2, (1, 2, 2))(Routed(torch.randn(2, 3, 2)), chosen)
