"""Credit of tokens and layers: sums to one, none for padding, and by hand on two layers."""

import pytest
import torch

import flashcaps
from flashcaps.analysis import DoesNotApply, Run
from flashcaps.analysis.credit import credit, credit_of
from flashcaps.analysis.inside import trace
from flashcaps.training.batches import Batch


def sentences() -> Run:
    torch.manual_seed(0)
    model = flashcaps.create_model("heinsen_sst2", layers=3, width=8).eval()
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    batch = Batch(torch.randn(2, 4, 3, 8), torch.tensor([0, 1]), mask=mask)
    return Run(model, batch, tokens=[["a", "good", "film", "."], ["bad", ".", "pad", "pad"]])


@torch.no_grad()
def test_credit_by_hand():
    run = sentences()
    layers = trace(run, run.batch)
    got = credit_of(layers)
    assert got.shape == (2, 12, run.model.classes)
    torch.testing.assert_close(got.sum(1), torch.ones(2, run.model.classes))
    low, top = (layer.steps[-1].coupling[0] for layer in layers)
    there = torch.sigmoid(layers[1].activation[0])
    use = there[:, None] * top
    expected = sum(low[5, p] / low[:, p].sum() * use[p, 1] / use[:, 1].sum() for p in range(len(there)))
    torch.testing.assert_close(got[0, 5, 1], expected)


def test_padding_gets_no_credit_and_words_are_named():
    data, figure, caption = credit(sentences())
    assert float(data["credit"][1, 2:].sum()) == 0
    assert data["tokens"][1] == ["bad", "."]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["a", "good", "film", "."]
    assert "sentence 2 uses" in caption


def test_images_have_no_tokens(run):
    with pytest.raises(DoesNotApply, match="text"):
        credit(run)
