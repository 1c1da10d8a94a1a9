"""Traces give what the model gives; receptive fields are those of the arithmetic."""

import pytest
import torch

import flashcaps
from flashcaps.analysis import Run
from flashcaps.functional import dynamic_routing
from flashcaps.nn.trace import iterated
from flashcaps.routing import ROUTING
from flashcaps.training.batches import Batch
from tests.analysis.conftest import small_run


@pytest.mark.parametrize("routing", [*ROUTING, "concurrent convolutions"])
@torch.no_grad()
def test_the_last_layer_is_what_the_model_routes(routing):
    if routing in ROUTING:
        run = small_run(3, routing=routing, hidden=[6])
    else:
        model = flashcaps.create_model("attention_simple_cifar10", image=(3, 16, 16), iterations=3).eval()
        run = Run(model, Batch(torch.rand(2, 3, 16, 16), torch.zeros(2)))
    layers = run.trace(run.batch)
    expected = run.model.route(run.batch.inputs, coupling=True, record=True)
    torch.testing.assert_close(layers[-1].out.pose, expected.pose)
    assert [len(layer.steps) for layer in layers] == [len(expected.history)] * len(run.model.capsules.layers)
    torch.testing.assert_close(layers[-1].steps[-1].coupling, expected.coupling)


@torch.no_grad()
def test_votes_routed_by_the_plain_function_give_the_class_capsules(run):
    votes, top = run.class_votes(run.batch, iterations=4)
    torch.testing.assert_close(dynamic_routing(votes, iterations=4).pose, top.out.pose)
    assert run.layer().routing.iterations == 3  # put back, also after an error
    with pytest.raises(RuntimeError), iterated(run.stack(), 7):
        raise RuntimeError
    assert run.layer().routing.iterations == 3


def test_receptive_fields_are_those_of_two_convolutions(run):
    fields = run.receptive_fields()
    k1, s1 = 5, 2  # capsnet_tiny: 5 x 5 with stride 2, twice
    for i in range(fields.shape[0]):
        for j in range(fields.shape[1]):
            first = (i * s1 * 2, j * s1 * 2)
            last = (first[0] + k1 - 1 + (k1 - 1) * s1, first[1] + k1 - 1 + (k1 - 1) * s1)
            assert fields[i, j].tolist() == [first[0], last[0], first[1], last[1]]
