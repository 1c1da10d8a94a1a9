"""From class capsules to scores and pictures."""

import pytest
import torch
from torch import nn

from flashcaps import Activations, Decoder, Lengths, Routed, SharedLinear
from flashcaps.nn.heads import mask_capsules

from ..conftest import assert_near


def test_lengths() -> None:
    pose = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]], requires_grad=True)
    lengths = Lengths()(Routed(pose))
    assert lengths.tolist() == [[5.0, 0.0]]
    lengths.sum().backward()
    assert_near(pose.grad, [[[0.6, 0.8], [0.0, 0.0]]])


def test_activations() -> None:
    routed = Routed(torch.randn(2, 3, 4), torch.rand(2, 3))
    assert Activations()(routed) is routed.activation
    with pytest.raises(ValueError, match=r"^routed: .*no activation; use SharedLinear"):
        Activations()(Routed(torch.randn(2, 3, 4)))


def test_one_linear_unit_for_all_class_capsules() -> None:
    head = SharedLinear(4)
    assert sum(p.numel() for p in head.parameters()) == 5
    pose = torch.randn(2, 3, 4)
    scores = head(Routed(pose))
    for j in range(3):
        assert_near(scores[:, j], (pose[:, j] @ head.linear.weight[0] + head.linear.bias).double())


def test_all_but_one_capsule_are_zeroed_not_dropped() -> None:
    pose = torch.randn(2, 3, 4)
    for chosen, kept in (([2, 0], [[0, 0, 1], [1, 0, 0]]), ([[1, 0, 1], [0, 0, 0]], [[1, 0, 1], [0, 0, 0]])):
        assert torch.equal(mask_capsules(pose, torch.tensor(chosen)), pose * torch.tensor(kept)[..., None])


def test_decoder_of_the_paper() -> None:
    decoder = Decoder(10, 16, (1, 28, 28))
    assert sum(p.numel() for p in decoder.parameters()) == 1_411_344
    assert [type(m) for m in decoder.layers] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear, nn.Sigmoid]
    assert decoder.layers[0].in_features == 160
    image = decoder(Routed(torch.randn(3, 10, 16)), torch.tensor([1, 2, 3]))
    assert image.shape == (3, 1, 28, 28)
    assert 0 <= image.min() <= image.max() <= 1


def test_decoder_sees_the_chosen_capsule_only() -> None:
    decoder = Decoder(3, 4, (2, 5, 6), hidden=(7,))
    pose = torch.randn(2, 3, 4, requires_grad=True)
    decoder(Routed(pose), torch.tensor([2, 1])).sum().backward()
    seen = pose.grad.abs().sum(-1) > 0
    assert seen.tolist() == [[False, False, True], [False, True, False]]


def test_decoder_chooses_the_most_active_unless_told() -> None:
    decoder = Decoder(3, 2, (1, 2, 2), hidden=())
    pose = torch.tensor([[[0.1, 0.0], [0.0, 0.9], [0.3, 0.3]]])
    assert_near(decoder(Routed(pose)), decoder(Routed(pose), torch.tensor([1])).double())
    activation = torch.tensor([[0.2, 0.1, 0.9]])
    assert_near(decoder(Routed(pose, activation)), decoder(Routed(pose), torch.tensor([2])).double())


def test_decoder_takes_an_empty_batch_and_several_capsules() -> None:
    decoder = Decoder(3, 2, (1, 2, 2), hidden=(4, 5, 6))
    assert decoder(Routed(torch.randn(0, 3, 2))).shape == (0, 1, 2, 2)
    pose = torch.randn(1, 3, 2)
    both = decoder(Routed(pose), torch.tensor([[1, 1, 1]]))
    assert_near(both, decoder.layers(pose.flatten(1)).view(1, 1, 2, 2).double())


@pytest.mark.parametrize("chosen", [torch.tensor([0, 1, 2]), torch.tensor([[0, 1]])])
def test_decoder_checks_what_is_chosen(chosen: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^chosen: expected"):
        Decoder(3, 2, (1, 2, 2))(Routed(torch.randn(2, 3, 2)), chosen)
